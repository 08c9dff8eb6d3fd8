// SPDX-License-Identifier: Apache-2.0
// Tokens on their way from the loader to the stage's input views.
#pragma once

#include <memory>
#include <vector>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/train/prefetcher.hpp"

namespace hyperslab::train {

/// Brings microbatches to views of a stage: load() those of a training step, which a thread loads
/// ahead; next() and upload() those that the caller fills. Memory and thread are made by the first
/// call that needs them, and nothing is allocated later.
class BatchFeed {
 public:
  /// `like`: a slot's views, for shapes. `depth`: microbatches whose copies to a GPU may be on
  /// their way at once; the caller sees to it that older ones are done. `microbatches`: of one step
  /// here. `with_sort_index`: false if no embedding needs the token sort index.
  BatchFeed(Context& ctx, const Batch& like, std::size_t depth, int microbatches = 1,
            bool with_sort_index = true);

  /// destination = microbatch `microbatch` of step `step`, while a thread loads those after it; on
  /// a GPU the copy is enqueued. Any order of calls is right, the order of training is fast. Absent
  /// views are left out. `loader` must live until release(), the destructor or a load() from
  /// another one. Throws Error(data) of this microbatch.
  void load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
            const Batch& destination);
  /// Waits until no thread reads from the loader, and forgets it.
  void release();

  /// Host memory for the next microbatch that the caller fills: on the CPU the views of `like`.
  [[nodiscard]] Batch next();
  /// Enqueues the copy of what next() gave and the caller filled, to `like` or `destination`.
  void upload(Context& ctx) const;
  void upload(Context& ctx, const Batch& destination) const;

 private:
  [[nodiscard]] Dim samples() const;
  [[nodiscard]] Dim length() const;

  Batch like_;
  Device device_;
  std::size_t depth_;
  int microbatches_;
  bool with_sort_index_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::vector<HostBatch> staging_;  ///< of next(); empty on the CPU and on meta
  std::size_t at_ = 0;
};

}  // namespace hyperslab::train
