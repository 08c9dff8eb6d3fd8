// SPDX-License-Identifier: Apache-2.0
// Samples on their way from the loader to the stage's input views.
#pragma once

#include <cstddef>
#include <memory>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/context.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::train {

/// Brings microbatches to views of a stage. Memory and threads are made by the first call that
/// needs them.
class BatchFeed {
 public:
  BatchFeed() = default;
  virtual ~BatchFeed() = default;
  BatchFeed(const BatchFeed&) = delete;
  BatchFeed& operator=(const BatchFeed&) = delete;
  BatchFeed(BatchFeed&&) = delete;
  BatchFeed& operator=(BatchFeed&&) = delete;

  /// destination = microbatch `microbatch` of step `step`, while threads load those after it; on a
  /// GPU copies there are enqueued. Any order of calls is right, the order of training is
  /// fast. Absent views are left out. `loader` must live until release(), the destructor or a
  /// load() from another one. Throws Error(data) of this microbatch.
  virtual void load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
                    const Batch& destination) = 0;
  /// Samples of an evaluation.
  struct Part {
    const io::Samples& samples;
    std::int64_t first = 0;   ///< in the order of the samples
    std::int64_t end = 0;     ///< samples from here on do not count
    std::int64_t stride = 0;  ///< the next part that is asked for begins so many samples later
  };
  /// Loads a microbatch of an evaluation likewise, but leaves sample_position as it is. Throws
  /// Error(data).
  virtual void load(Context& ctx, const Part& part, const Batch& destination) = 0;
  /// Waits until no thread reads from the loader or the samples, and forgets them.
  virtual void release() = 0;
};

/// The part of every sample's tokens that a rank has.
struct TokenPart {
  int part = 0;
  int parts = 1;
};

struct FeedOptions {
  std::size_t depth = 1;  ///< microbatches whose copies to a GPU may be on their way at once; the
                          ///< caller sees to it that older ones are done
  int microbatches = 1;   ///< microbatches of one step on this rank
  bool with_sort_index = true;  ///< false if no embedding needs the token sort index
  TokenPart tokens{};
};

/// `like`: a slot's views, for shapes.
[[nodiscard]] std::unique_ptr<BatchFeed> make_feed(Context& ctx, const Batch& like,
                                                   const FeedOptions& options);

}  // namespace hyperslab::train
