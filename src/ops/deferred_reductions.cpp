// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/deferred_reductions.hpp"

#include "backend.hpp"

namespace hyperslab::ops {

void finish_sums(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::finish_sums(ctx);
  }
  ctx.free_partials();
}

}  // namespace hyperslab::ops
