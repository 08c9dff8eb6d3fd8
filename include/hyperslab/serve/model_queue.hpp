// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

namespace hyperslab::serve {

/// Work for the one thread that uses the model, in the order in which it came.
class ModelQueue {
 public:
  /// `most`: how much work may wait.
  explicit ModelQueue(std::size_t most) : most_(most) {}

  /// One of the two is called, once. Neither throws.
  struct Work {
    std::function<void()> begin;   ///< starts texts, which the model's steps continue
    std::function<void()> refuse;  ///< the queue was closed before its turn came
    bool is_alone = false;         ///< it needs the model while nothing else is in progress
    bool is_first = false;  ///< it goes before all that waits, and is taken by a full queue, too
  };
  /// The calls that drive the texts in progress. Nothing throws.
  struct Model {
    std::function<bool()> has_room;  ///< for work that begins now
    std::function<bool()> step;      ///< goes on with all; false: nothing is in progress
    /// Called every kRest while the queue waits for work; may be absent.
    std::function<void()> rest = {};
  };
  static constexpr std::chrono::milliseconds kRest{10};
  enum class Pushed : std::uint8_t { taken, full, closed };
  /// Any thread. Work that is not taken is left alone.
  Pushed push(Work work);
  /// The model's thread: begins requests as soon as there is room for them, in order, and steps on,
  /// until the queue is closed; then refuses waiting ones and finishes those in progress.
  void run(const Model& model);
  /// Any thread: requests in progress are finished, no other begins.
  void close();

 private:
  [[nodiscard]] std::optional<Work> next(const Model& model, bool is_busy);

  std::size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool is_closed_ = false;
};

}  // namespace hyperslab::serve
