// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checks.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/dropout.hpp"

namespace hyperslab::ops {

/// Throws where an active dropout lacks what its mask is a function of. B: samples.
inline void require_dropout(const Context& ctx, const Dropout& dropout, Dim B) {
  require(dropout.probability >= 0 && dropout.probability < 1,
          "dropout probability: wanted at least 0 and less than 1");
  if (!dropout.active()) return;
  require_operand(ctx, dropout.sample_position, {B}, DType::i64, "dropout sample_position");
  require(ctx.device() == Device::meta || dropout.state != nullptr,
          "dropout state: the step's state is absent");
}

}  // namespace hyperslab::ops
