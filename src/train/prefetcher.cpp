// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/prefetcher.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "batch_views.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/round_up.hpp"
#include "token_cut.hpp"

namespace hyperslab::train {

HostBatch::HostBatch(Device device, const Batch& like) {
  constexpr std::size_t kAlignment = 64;
  std::size_t bytes = 0;
  for (const auto view : kBatchViews) {
    if (like.*view) bytes += round_up((like.*view).bytes(), kAlignment);
  }
  memory_ = PinnedBuffer(device, bytes);
  auto* at = static_cast<std::byte*>(memory_.data());
  for (const auto view : kBatchViews) {
    const View& shape = like.*view;
    if (!shape) continue;
    views_.*view = View(at, shape.dtype(), Device::cpu, shape.shape());
    at += round_up(shape.bytes(), kAlignment);
  }
}

Prefetcher::Prefetcher(Device device, const Batch& like, const TokenPart& part, int microbatches,
                       std::size_t ahead, std::size_t held)
    : microbatches_(microbatches),
      ahead_(ahead),
      held_(held),
      cut_(std::make_unique<TokenCut>(like, part)) {
  ring_.reserve(ahead + held);
  for (std::size_t i = 0; i < ahead + held; ++i) ring_.emplace_back(device, like);
  thread_ = std::thread([this] { run(); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_one();
  thread_.join();
}

BatchIndex Prefetcher::after(BatchIndex index) const {
  if (index.microbatch + 1 < microbatches_) return {index.step, index.microbatch + 1};
  return {index.step + 1, 0};
}

/// A microbatch that was taken already and is still in memory; null: it is not. Counted back from
/// first_, the next to be taken, their memory lies before head_, until loading starts over.
const HostBatch* Prefetcher::kept(BatchIndex index) const {
  BatchIndex at = first_;
  for (std::size_t back = 1; back <= taken_; ++back) {
    at = at.microbatch > 0 ? BatchIndex{at.step, at.microbatch - 1}
                           : BatchIndex{at.step - 1, microbatches_ - 1};
    if (at.step != index.step) break;
    if (at == index) return &ring_[(head_ + ring_.size() - back) % ring_.size()];
  }
  return nullptr;
}

const Batch& Prefetcher::take(io::Loader& loader, BatchIndex index) {
  std::unique_lock lock(mutex_);
  if (loader_ == &loader && first_ != index) {
    if (const HostBatch* batch = kept(index)) return batch->views();
  }
  if (loader_ != &loader || first_ != index) start_over(lock, &loader, index);
  loaded_.wait(lock, [this] { return ready_ > 0 || error_ != nullptr; });
  if (ready_ == 0) {
    loader_ = nullptr;
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  const Batch& batch = ring_[head_].views();
  head_ = (head_ + 1) % ring_.size();
  first_ = after(index);
  taken_ = std::min(taken_ + 1, held_);
  const bool wake = --ready_ <= ahead_ / 4;  // once for several: it can cost this thread its core
  lock.unlock();
  if (wake) asked_.notify_one();
  return batch;
}

void Prefetcher::release() {
  std::unique_lock lock(mutex_);
  start_over(lock, nullptr, {});
}

/// Loads from `index` on. Microbatches loaded and not taken are dropped.
void Prefetcher::start_over(std::unique_lock<std::mutex>& lock, io::Loader* loader,
                            BatchIndex index) {
  loader_ = nullptr;  // so that the thread begins nothing after its present work
  loaded_.wait(lock, [this] { return !busy_; });
  ready_ = taken_ = 0;
  error_ = nullptr;
  first_ = next_ = index;
  loader_ = loader;
  if (loader != nullptr) asked_.notify_one();
}

void Prefetcher::run() {
  // A batch thread does not push the thread that wakes it from its core. Advice only.
  const sched_param priority{};
  (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &priority);
  std::unique_lock lock(mutex_);
  for (;;) {
    asked_.wait(lock, [this] {
      return stop_ || (loader_ != nullptr && ready_ < ahead_ && error_ == nullptr);
    });
    if (stop_) return;
    io::Loader& loader = *loader_;
    const BatchIndex index = next_;
    const Batch& out = ring_[(head_ + ready_) % ring_.size()].views();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error = load(loader, index, out);
    lock.lock();
    busy_ = false;
    if (error == nullptr) {
      ++ready_;
      next_ = after(index);
    }
    error_ = std::move(error);
    loaded_.notify_one();
  }
}

std::exception_ptr Prefetcher::load(io::Loader& loader, BatchIndex index, const Batch& out) {
  try {
    fault::reach("step.load");
    // The trainer asks for the count when the step begins, and shall not wait for it.
    if (index.microbatch == 0) (void)loader.weights(index.step);
    cut_->read(out, [&](const Batch& whole) { loader.load(index.step, index.microbatch, whole); });
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace hyperslab::train
