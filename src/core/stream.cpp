// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/stream.hpp"

#include <utility>

#include "cuda.hpp"
#include "host_queue.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {

void Event::wait() const {
  if (host_) host_->wait();
  if constexpr (kHasCuda) {
    if (cuda_) cuda_runtime::synchronize(cuda_.get());
  }
}

bool Event::is_complete() const {
  if (host_) return host_->is_complete();
  if constexpr (kHasCuda) {
    if (cuda_) return cuda_runtime::is_complete(cuda_.get());
  }
  return true;
}

Stream::Stream(Device device, HostWork host_work) : device_(device) {
  if constexpr (kHasCuda) {
    if (device == Device::cuda) {
      cuda_ = {cuda_runtime::make_stream(), cuda_runtime::destroy_stream};
    }
  }
  if (device == Device::cpu && host_work == HostWork::by_thread) {
    queue_ = std::make_unique<HostQueue>();
  }
}

Stream::~Stream() = default;

Event Stream::record() {
  if (queue_) return Event(queue_->record());
  if constexpr (kHasCuda) {
    if (cuda_) return Event(cuda_runtime::record(cuda_.get()));
  }
  return {};
}

void Stream::wait(const Event& event) {
  if (device_ == Device::meta) return;
  if constexpr (kHasCuda) {
    if (cuda_ && event.cuda_) return cuda_runtime::wait(cuda_.get(), event.cuda_.get());
  }
  if (queue_ && (event.host_ || event.cuda_)) return queue_->add([event] { event.wait(); });
  event.wait();
}

void Stream::run(std::function<void()> work) {
  require(device_ == Device::cpu, "only streams of the CPU run work of the host");
  queue_ ? queue_->add(std::move(work)) : work();
}

}  // namespace hyperslab
