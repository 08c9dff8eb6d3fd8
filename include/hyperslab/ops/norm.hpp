// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {

enum class NormKind : std::uint8_t { layernorm, rmsnorm, none };

/// Absent views are those that the kind of norm or the call does not need.
struct NormOperands {
  CView residual;
  CView delta{};
  CView weight{};
  CView bias{};
  float eps = 0;
};
struct NormResults {
  View sum{};
  View y;
  View mean{};
  View rstd{};
};

/// Residual addition and normalization in one pass:
///   sum = residual + delta          (delta absent: sum is residual itself and `sum` may be absent)
///   y   = (sum - mean) * rstd * weight + bias   layernorm (Ba et al. 2016, eq. 4)
///   y   = sum * rstd * weight                   rmsnorm (Zhang & Sennrich 2019, eq. 4)
///   y   = sum                                   none; weight, bias, mean and rstd are absent
/// residual, delta, sum, y: (..., C); sum may alias residual or delta. weight: (C); bias: (C) or
/// absent. mean, rstd: (...) in f32 (f64 for f64), kept for backward; mean is absent for rmsnorm.
/// Statistics are summed in f32 or better; eps is inside the root. Statistics and y come from `sum`
/// as it is stored: the norm of the kept sum, without delta, gives the same bits again (on a
/// GPU if the operands of both calls are aligned to 16 bytes, or of both are not). A CPU in bf16
/// takes them from the sum before it is rounded.
void add_norm_forward(Context& ctx, NormKind kind, const NormOperands& operands,
                      const NormResults& results);

/// Values that forward read and kept.
struct NormSaved {
  CView sum{};
  CView weight{};
  CView mean{};
  CView rstd{};
};
struct NormGradients {
  View dsum;
  Accumulate accumulate_input = Accumulate::no;
  View dweight{};
  View dbias{};
  Accumulate accumulate_weight = Accumulate::no;
  /// Column sums of dsum as it arrives over the residual path and as it leaves: gradients of biases
  /// that are added to the stream after this norm and before it. Both or neither, and only with
  /// dweight and Accumulate::yes of the input.
  View arriving_sums{};
  View leaving_sums{};
};

/// dsum (+)= gradient with respect to `sum`; dweight, dbias (+)= sums over rows, deterministic.
/// dy, sum, dsum: (..., C); with accumulate_input::yes dsum holds the gradient that arrived over
/// the residual path and is added to. dsum may alias dy if accumulate_input is no. dweight,
/// dbias: (C); dbias is absent if there is no bias, both if they are frozen.
/// arriving_sums, leaving_sums: as dweight, (+)= by accumulate_weight.
void norm_backward(Context& ctx, NormKind kind, CView dy, const NormSaved& saved,
                   const NormGradients& gradients);

}  // namespace hyperslab::ops
