// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/model_queue.hpp"

#include <utility>

namespace hyperslab::serve {

ModelQueue::Pushed ModelQueue::push(Work work) {
  {
    const std::scoped_lock lock(mutex_);
    if (is_closed_) return Pushed::closed;
    if (work.is_first) {
      waiting_.push_front(std::move(work));
    } else {
      if (waiting_.size() >= most_) return Pushed::full;
      waiting_.push_back(std::move(work));
    }
  }
  changed_.notify_one();
  return Pushed::taken;
}

/// Waits for work if nothing else is to be done.
std::optional<ModelQueue::Work> ModelQueue::next(const Model& model, bool is_busy) {
  std::unique_lock lock(mutex_);
  const auto has_news = [&] { return is_closed_ || !waiting_.empty(); };
  if (!is_busy && !model.rest) changed_.wait(lock, has_news);
  while (!is_busy && !changed_.wait_for(lock, kRest, has_news)) {
    lock.unlock();
    model.rest();
    lock.lock();
  }
  if (is_closed_ || waiting_.empty()) return std::nullopt;
  const bool fits = waiting_.front().is_alone ? !is_busy : model.has_room();
  if (!fits) return std::nullopt;
  Work work = std::move(waiting_.front());
  waiting_.pop_front();
  return work;
}

void ModelQueue::run(const Model& model) {
  bool is_busy = false;
  for (bool is_open = true; is_open;) {
    while (const std::optional<Work> work = next(model, is_busy)) {
      work->begin();
      is_busy = true;  // as the next step says
      if (work->is_alone) break;
    }
    if (is_busy) is_busy = model.step();
    const std::scoped_lock lock(mutex_);
    is_open = !is_closed_;
  }
  for (const Work& work : std::exchange(waiting_, {})) work.refuse();  // closed: no more comes
  while (is_busy) is_busy = model.step();
}

void ModelQueue::close() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace hyperslab::serve
