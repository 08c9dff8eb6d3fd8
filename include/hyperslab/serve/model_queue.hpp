// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace hyperslab::serve {

/// Work for the one thread that uses the model, in the order in which it came.
class ModelQueue {
 public:
  /// `most`: how much work may wait.
  explicit ModelQueue(std::size_t most) : most_(most) {}

  /// One of the two is called, once. Neither throws.
  struct Work {
    std::function<void()> run;
    std::function<void()> refuse;  ///< the queue was closed before its turn came
  };
  enum class Pushed : std::uint8_t { taken, full, closed };
  /// Any thread. Work that is not taken is left alone.
  Pushed push(Work work);
  /// The model's thread: runs what comes, until the queue is closed, then refuses what waits.
  void run();
  /// Any thread: what runs now is finished, nothing else begins.
  void close();

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool is_closed_ = false;
};

}  // namespace hyperslab::serve
