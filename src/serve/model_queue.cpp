// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/model_queue.hpp"

#include <utility>

namespace hyperslab::serve {

ModelQueue::Pushed ModelQueue::push(Work work) {
  {
    const std::scoped_lock lock(mutex_);
    if (is_closed_) return Pushed::closed;
    if (waiting_.size() >= most_) return Pushed::full;
    waiting_.push_back(std::move(work));
  }
  changed_.notify_one();
  return Pushed::taken;
}

void ModelQueue::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_closed_ || !waiting_.empty(); });
    if (is_closed_) break;
    const Work work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work.run();
  }
  for (const Work& work : std::exchange(waiting_, {})) work.refuse();  // closed: no more comes
}

void ModelQueue::close() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace hyperslab::serve
