// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "hyperslab/core/context.hpp"

namespace hyperslab {

/// Work that is enqueued the same way step after step, on fixed addresses. On CUDA it runs eagerly
/// the first time (when libraries choose their kernels), is captured the second time and replayed
/// from then on, so that the host only launches; elsewhere it simply runs. The work's effects on
/// the host besides enqueueing happen only in the first two runs.
class GraphSegment {
 public:
  GraphSegment() = default;
  /// `enabled` false: always eager.
  template <class Work>
  void run(Context& ctx, bool enabled, Work&& work) {
    if (!enabled || ctx.device() != Device::cuda || runs_++ == 0) {
      work();
      return;
    }
    if (!graph_) {
      begin_capture(ctx);
      try {
        work();
      } catch (...) {
        abandon_capture(ctx);
        throw;
      }
      graph_ = end_capture(ctx);
    }
    launch(ctx);
  }

 private:
  static void begin_capture(Context& ctx);
  static void abandon_capture(Context& ctx) noexcept;
  static std::shared_ptr<void> end_capture(Context& ctx);
  void launch(Context& ctx) const;
  std::shared_ptr<void> graph_;  ///< an instantiated CUDA graph
  int runs_ = 0;
};

}  // namespace hyperslab
