// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/loss.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {

void softmax_cross_entropy(Context& ctx, View logits, CView targets, const StepState* state,
                           WithGradient gradient, View sums) {
  require_here(ctx, logits, "softmax_cross_entropy logits");
  const auto [N, V] = logits.dims<2>("softmax_cross_entropy logits");
  require_operand(ctx, targets, {N}, DType::i32, "softmax_cross_entropy targets");
  require_sums(ctx, sums, "softmax_cross_entropy sums");
  require(gradient == WithGradient::no || state != nullptr || ctx.device() == Device::meta,
          "softmax_cross_entropy state: the gradient needs the step's state");
  const double per_element = gradient == WithGradient::yes ? 12 : 10;
  if (on_meta(ctx, "softmax_cross_entropy", per_element * static_cast<double>(N * V),
              {logits, targets, sums},
              workspace_for(ctx, cpu::softmax_cross_entropy_workspace(ctx.threads()),
                            cuda::softmax_cross_entropy_workspace(N)))) {
    return;
  }
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) {
      return cuda::softmax_cross_entropy(ctx, logits, targets, state, gradient, sums);
    }
  }
  cpu::softmax_cross_entropy(ctx, logits, targets, state, gradient, sums);
}

}  // namespace hyperslab::ops
