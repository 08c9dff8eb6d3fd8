// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/stream.hpp"

#include <algorithm>
#include <utility>

#include "cuda.hpp"
#include "host_queue.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/operation_list.hpp"

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
  return Event(link_ticket_);
}

void Stream::wait(const Event& event) {
  if (device_ == Device::meta) return wait_on_meta(event.link_ticket_);
  if constexpr (kHasCuda) {
    if (cuda_ && event.cuda_) return cuda_runtime::wait(cuda_.get(), event.cuda_.get());
  }
  if (queue_ && (event.host_ || event.cuda_)) return queue_->add([event] { event.wait(); });
  event.wait();
}

void Stream::wait_on_meta(std::uint64_t link_ticket) {
  if (is_beside_) link_ticket_ = std::max(link_ticket_, link_ticket);
  if (is_beside_ || link_ticket == 0 || operations_ == nullptr) return;
  Operation& added = operations_->emplace_back();
  added.kind = Operation::Kind::wait;
  added.group = kHostLink;
  added.ticket = link_ticket;
}

void Stream::list_transfer(Stream& link, std::size_t bytes) {
  if (operations_ == nullptr) return;
  Operation& added = operations_->emplace_back();
  added.kind = Operation::Kind::collective;
  added.name = "to_device";
  added.group = kHostLink;
  added.ticket = link.link_ticket_ = ++transfers_;
  added.bytes = static_cast<double>(bytes);
}

void Stream::set_beside(bool beside) {
  is_beside_ = beside;
  if (!beside) link_ticket_ = 0;
}

void Stream::run(std::function<void()> work) {
  require(device_ == Device::cpu, "only streams of the CPU run work of the host");
  queue_ ? queue_->add(std::move(work)) : work();
}

}  // namespace hyperslab
