// SPDX-License-Identifier: Apache-2.0
// A thread that loads the next microbatches while the step computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/train/batch_feed.hpp"

namespace hyperslab::train {

/// Microbatch `microbatch` of step `step`.
struct BatchIndex {
  std::int64_t step = 0;
  int microbatch = 0;
  friend bool operator==(const BatchIndex&, const BatchIndex&) = default;
};

/// Host memory of a microbatch with the views of `like`; page-locked for `cuda`.
class HostBatch {
 public:
  HostBatch(Device device, const Batch& like);
  [[nodiscard]] const Batch& views() const { return views_; }

 private:
  PinnedBuffer memory_;
  Batch views_;
};

class TokenCut;

/// Loads microbatches in the order (s, m), (s, m + 1), ..., (s + 1, 0), ... into a ring of host
/// memory, at most `ahead` before they are asked for. The thread sleeps while there is nothing to
/// do; it calls neither MPI nor CUDA. Not to be called by several threads at once.
class Prefetcher {
 public:
  /// The ring keeps the last `held` microbatches that take() gave as they are.
  Prefetcher(Device device, const Batch& like, const TokenPart& part, int microbatches,
             std::size_t ahead, std::size_t held);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  Prefetcher(Prefetcher&&) = delete;
  Prefetcher& operator=(Prefetcher&&) = delete;
  ~Prefetcher();

  /// The microbatch, after waiting for the thread. One of the newest step that the ring still keeps
  /// is given again (chunks of a stage ask for the same ones); for any other one that is not the
  /// next one, or of another loader, loading starts over from it. `loader` must live until
  /// release(), the destructor, or a call with another loader. Throws the loader's error.
  const Batch& take(io::Loader& loader, BatchIndex index);
  /// Waits until the thread reads nothing, and forgets the loader.
  void release();

 private:
  [[nodiscard]] BatchIndex after(BatchIndex index) const;
  [[nodiscard]] const HostBatch* kept(BatchIndex index) const;
  void start_over(std::unique_lock<std::mutex>& lock, io::Loader* loader, BatchIndex index);
  void run();
  [[nodiscard]] std::exception_ptr load(io::Loader& loader, BatchIndex index, const Batch& out);

  int microbatches_;
  std::size_t ahead_;
  std::size_t held_;
  std::vector<HostBatch> ring_;
  std::unique_ptr<TokenCut> cut_;  // the thread's

  std::mutex mutex_;  // guards everything below
  std::condition_variable asked_;
  std::condition_variable loaded_;
  io::Loader* loader_ = nullptr;  // null: the thread sleeps
  std::size_t head_ = 0;          // in the ring, of the oldest that was not taken
  std::size_t ready_ = 0;         // loaded, not taken
  std::size_t taken_ = 0;         // before head_, from loader_ in a row; at most held_
  BatchIndex first_;              // microbatch at head_
  BatchIndex next_;               // that the thread loads
  bool busy_ = false;             // the thread loads at this moment
  std::exception_ptr error_;      // failure of loading next_; the thread sleeps
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace hyperslab::train
