// SPDX-License-Identifier: Apache-2.0
#include "host_queue.hpp"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace hyperslab {

void HostEvent::complete(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  is_complete_ = true;
  completed_.notify_all();
}

void HostEvent::wait() const {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [this] { return is_complete_; });
  if (error_) std::rethrow_exception(error_);
}

bool HostEvent::is_complete() const {
  const std::lock_guard lock(mutex_);
  return is_complete_;
}

HostQueue::~HostQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void HostQueue::add(std::function<void()> work) {
  if (!thread_.joinable()) start_thread();
  push({std::move(work), nullptr});
}

std::shared_ptr<HostEvent> HostQueue::record() {
  if (!thread_.joinable()) return nullptr;
  auto event = std::make_shared<HostEvent>();
  push({nullptr, event});
  return event;
}

void HostQueue::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  changed_.notify_one();
}

/// Signals go to the main thread.
void HostQueue::start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { do_items(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void HostQueue::do_items() {
  std::exception_ptr error;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !items_.empty(); });
    if (items_.empty()) return;
    const Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (item.event) {
      item.event->complete(error);
    } else if (!error) {
      try {
        item.work();
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
  }
}

}  // namespace hyperslab
