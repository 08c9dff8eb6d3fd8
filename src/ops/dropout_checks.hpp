// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checks.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/dropout.hpp"

namespace hyperslab::ops {

/// Elements of one sample of x, which is not empty, with the columns that are here.
[[nodiscard]] inline Dim sample_elements(const Dropout& dropout, CView x) {
  return dropout.elements_per_sample != 0 ? dropout.elements_per_sample : x.numel() / x.shape()[0];
}

/// The samples of x, in units of sample_elements(), that lie before sample b in the mask.
[[nodiscard]] inline Dim samples_before(const Dropout& dropout, std::int64_t position) {
  return position * dropout.sample_parts + dropout.sample_part;
}

/// The columns of x among the mask's columns.
struct MaskColumns {
  Dim here = 0;
  Dim first = 0;
  Dim total = 0;
  [[nodiscard]] bool are_all() const { return here == total; }
};
[[nodiscard]] inline MaskColumns mask_columns(const Dropout& dropout, CView x) {
  const Dim here = x.shape().back();
  if (dropout.total_columns == 0) return {here, 0, here};
  return {here, dropout.first_column, dropout.total_columns};
}
/// Heads of one sample in the mask of `dropout`.
[[nodiscard]] inline Dim mask_heads(const Dropout& dropout, Dim heads) {
  return dropout.total_heads != 0 ? dropout.total_heads : heads;
}

/// Throws if an active dropout lacks an argument of its mask's function. B: samples, all of them
/// if x is a part of a microbatch.
inline void require_dropout(const Context& ctx, const Dropout& dropout, Dim B) {
  require(dropout.probability >= 0 && dropout.probability < 1,
          "dropout probability: expected at least 0 and less than 1");
  if (!dropout.active()) return;
  require_operand(ctx, dropout.sample_position, {B}, DType::i64, "dropout sample_position");
  require(ctx.device() == Device::meta || dropout.state != nullptr,
          "dropout state: the step's state is absent");
}

/// The `heads` here are among all heads.
inline void require_heads(const Dropout& dropout, Dim heads) {
  const Dim total = mask_heads(dropout, heads);
  require(!dropout.active() || (dropout.first_head >= 0 && dropout.first_head + heads <= total),
          "dropout first_head: the heads are not among total_heads");
}

}  // namespace hyperslab::ops
