// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/graph.hpp"

#include "cuda.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {

void GraphSegment::begin_capture(Context& ctx) {
  if constexpr (kHasCuda) return cuda_runtime::begin_capture(ctx.stream().cuda());
  require(false, "graphs need CUDA");
}

void GraphSegment::abandon_capture(Context& ctx) noexcept {
  if constexpr (kHasCuda) cuda_runtime::abandon_capture(ctx.stream().cuda());
}

std::shared_ptr<void> GraphSegment::end_capture(Context& ctx) {
  if constexpr (kHasCuda) return cuda_runtime::end_capture(ctx.stream().cuda());
  return nullptr;
}

void GraphSegment::launch(Context& ctx) const {
  if constexpr (kHasCuda) cuda_runtime::launch_graph(graph_.get(), ctx.stream().cuda());
}

}  // namespace hyperslab
