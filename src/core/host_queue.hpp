// SPDX-License-Identifier: Apache-2.0
// Streams of the CPU whose work a thread does.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace hyperslab {

/// Completed once, by one thread, and waited for by any.
class HostEvent {
 public:
  /// `error`: null, or the error that wait() throws.
  void complete(std::exception_ptr error);
  void wait() const;
  [[nodiscard]] bool is_complete() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable completed_;
  bool is_complete_ = false;
  std::exception_ptr error_;
};

/// Work that a thread of the queue does in order; the thread starts with the first work. One other
/// thread adds work.
class HostQueue {
 public:
  HostQueue() = default;
  /// Does the work that is left.
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  HostQueue(HostQueue&&) = delete;
  HostQueue& operator=(HostQueue&&) = delete;

  void add(std::function<void()> work);
  /// Null if no work was ever added.
  [[nodiscard]] std::shared_ptr<HostEvent> record();

 private:
  /// Work, or an event to complete.
  struct Item {
    std::function<void()> work;
    std::shared_ptr<HostEvent> event;
  };
  void push(Item item);
  void start_thread();
  void do_items();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace hyperslab
