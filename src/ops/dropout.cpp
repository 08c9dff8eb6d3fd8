// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/dropout.hpp"

#include "backend.hpp"
#include "dropout_checks.hpp"

namespace hyperslab::ops {

void dropout(Context& ctx, const Dropout& dropout, CView x, View y) {
  require_here(ctx, x, "dropout x");
  require(x.shape().rank() > 0, "dropout x: wanted (B, ...)");
  require_operand(ctx, y, x.shape(), x.dtype(), "dropout y");
  require_dropout(ctx, dropout, x.shape()[0]);
  if (on_meta(ctx, "dropout", 10.0 * static_cast<double>(x.numel()),
              {x, y, dropout.sample_position})) {
    return;
  }
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::dropout(ctx, dropout, x, y);
  }
  cpu::dropout(ctx, dropout, x, y);
}

}  // namespace hyperslab::ops
