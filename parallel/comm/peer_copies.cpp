// SPDX-License-Identifier: Apache-2.0
#include "peer_copies.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"
#include "nccl_check.hpp"
#include "peer_sums.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{8} << 20;
/// Of the buffer of a call: with less, NCCL's latency is as good (14 us for 1 MiB of two H200).
constexpr std::size_t kLeastBytes = std::size_t{256} << 10;
constexpr int kLanes = 4;

using StreamValue = decltype(&cuStreamWaitValue32);

/// A function of the driver, without linking to it.
StreamValue driver_function(const std::string& communicator, const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  HS_COMM_CUDA(communicator,
               cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(ExitCode::device,
                "communicator " + communicator + ": the driver lacks " + std::string(name));
  }
  return reinterpret_cast<StreamValue>(function);
}

void check_driver(CUresult result, const char* call, const std::string& communicator) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ExitCode::device, "communicator " + communicator + ": " + call + " failed (" +
                                    std::to_string(static_cast<int>(result)) + ")");
}

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

/// What is enqueued on the stream next waits until the flag of this GPU is 1.
void wait_for(cudaStream_t stream, const std::uint32_t* flag, const std::string& communicator) {
  static const StreamValue wait = driver_function(communicator, "cuStreamWaitValue32");
  check_driver(wait(stream, address_of(flag), 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32",
               communicator);
}

/// After everything that the stream did is visible to all GPUs.
void set(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value,
         const std::string& communicator) {
  static const StreamValue write = driver_function(communicator, "cuStreamWriteValue32");
  check_driver(write(stream, address_of(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32", communicator);
}

bool is_aligned(CView view) {
  return reinterpret_cast<std::uintptr_t>(view.raw()) % kSumBytes == 0;
}

const std::byte* bytes_of(CView view) { return static_cast<const std::byte*>(view.raw()); }
std::byte* bytes_of(View view) { return static_cast<std::byte*>(view.raw()); }

}  // namespace

std::unique_ptr<PeerCopies> PeerCopies::make(MPI_Comm group, const std::string& communicator) {
  const char* wish = std::getenv("HYPERSLAB_PEER_COPIES");
  const bool wanted = wish == nullptr || std::string_view(wish) != "0";
  // Who does not want them asks for no bytes.
  std::optional<PeerMemory> memory =
      PeerMemory::map(group, communicator, kLanes * kSlots, wanted ? kSlotBytes : 0);
  if (!memory) return nullptr;
  return std::unique_ptr<PeerCopies>(new PeerCopies(communicator, std::move(*memory)));
}

PeerCopies::PeerCopies(const std::string& communicator, PeerMemory memory)
    : communicator_(communicator), memory_(std::move(memory)) {
  int least = 0;
  int greatest = 0;
  HS_COMM_CUDA(communicator_, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  const auto make_stream = [&] {
    cudaStream_t& stream = streams_.emplace_back(nullptr);
    HS_COMM_CUDA(communicator_,
                 cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    return stream;
  };
  const auto make_event = [&] {
    cudaEvent_t& event = events_.emplace_back(nullptr);
    HS_COMM_CUDA(communicator_, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  };
  added_ = make_event();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_.at(i);
    lane.first_slot = static_cast<int>(i) * kSlots;
    if (i < 2) {
      lane.frees = make_stream();
      lane.sends = make_stream();
      lane.receives = make_stream();
    } else {  // a capture and an eager call never enqueue at a time
      const Lane& eager = lanes_.at(i - 2);
      lane.frees = eager.frees;
      lane.sends = eager.sends;
      lane.receives = eager.receives;
    }
    for (Slot& slot : lane.slots) {
      slot.freed = make_event();
      slot.sent = make_event();
      slot.received = make_event();
    }
  }
}

PeerCopies::~PeerCopies() {
  const std::string who = "communicator " + communicator_;
  for (cudaStream_t stream : streams_) {
    log_if_cuda_failed(cudaStreamSynchronize(stream), who, "cudaStreamSynchronize");
    log_if_cuda_failed(cudaStreamDestroy(stream), who, "cudaStreamDestroy");
  }
  for (cudaEvent_t event : events_) {
    log_if_cuda_failed(cudaEventDestroy(event), who, "cudaEventDestroy");
  }
}

bool PeerCopies::takes(Call call, CView full, CView shard, ReduceOp op) const {
  const bool sums = call != Call::all_gather;
  const std::size_t parts = call == Call::all_reduce && memory_.size() == 2
                                ? 1
                                : static_cast<std::size_t>(memory_.size());
  return full.bytes() >= kLeastBytes && full.bytes() % (parts * kSumBytes) == 0 &&
         is_aligned(full) && (!shard || is_aligned(shard)) &&
         (!sums || (op == ReduceOp::sum && adds_peer_terms(full.dtype())));
}

int PeerCopies::exchange(Lane& lane, const Start& start, const std::byte* from, std::size_t stride,
                         std::size_t bytes) {
  const int index = std::exchange(lane.next, (lane.next + 1) % kSlots);
  const int slot = lane.first_slot + index;
  Slot& mine = lane.slots.at(static_cast<std::size_t>(index));
  const int rank = memory_.rank();
  const auto each_other = [&](auto&& work) {
    // Each begins with the member after itself, so that no member gets all messages first.
    for (int i = 1; i < memory_.size(); ++i) work((rank + i) % memory_.size());
  };

  // A member frees a slot once it has read it, for which it waits for what this member sent before:
  // this must not be held up by the wait for the slot.
  if (mine.used && mine.capture == start.capture) {
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, mine.received, 0));
  } else {
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, start.after, 0));
  }
  each_other([&](int other) {
    wait_for(lane.frees, memory_.free(slot, rank, other), communicator_);
    set(lane.frees, memory_.free(slot, rank, other), 0, communicator_);
  });
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.freed, lane.frees));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, mine.freed, 0));
  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, start.after, 0));
  each_other([&](int other) {
    HS_COMM_CUDA(communicator_, cudaMemcpyAsync(memory_.place(slot, rank, other),
                                                from + static_cast<std::size_t>(other) * stride,
                                                bytes, cudaMemcpyDeviceToDevice, lane.sends));
    set(lane.sends, memory_.full(slot, rank, other), 1, communicator_);
  });
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.sent, lane.sends));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.receives, mine.sent, 0));
  each_other(
      [&](int other) { wait_for(lane.receives, memory_.full(slot, other, rank), communicator_); });
  return slot;
}

void PeerCopies::release(Lane& lane, const Start& start, int slot) {
  Slot& mine = lane.slots.at(static_cast<std::size_t>(slot - lane.first_slot));
  const int rank = memory_.rank();
  for (int other = 0; other < memory_.size(); ++other) {
    if (other != rank) set(lane.receives, memory_.free(slot, other, rank), 1, communicator_);
  }
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.received, lane.receives));
  mine.used = true;
  mine.capture = start.capture;
}

void PeerCopies::add(Lane& lane, int slot, DType dtype, const std::byte* own, std::byte* out,
                     std::size_t bytes) {
  PeerTerms terms = {};
  terms.count = memory_.size();
  for (int member = 0; member < terms.count; ++member) {
    const auto i = static_cast<std::size_t>(member);
    const bool is_own = member == memory_.rank();
    terms.terms.at(i) = is_own ? own : memory_.place(slot, member, memory_.rank());
    terms.flags.at(i) = is_own ? nullptr : memory_.full(slot, member, memory_.rank());
  }
  HS_COMM_CUDA(communicator_, add_peer_terms(lane.receives, dtype, terms, out, bytes));
}

cudaStream_t PeerCopies::all_reduce(const Start& start, View buffer) {
  std::byte* data = bytes_of(buffer);
  Lane& terms = lane(Kind::terms, start);
  if (memory_.size() == 2) {
    for (std::size_t at = 0; at < buffer.bytes(); at += most_bytes()) {
      const std::size_t bytes = std::min(most_bytes(), buffer.bytes() - at);
      const int slot = exchange(terms, start, data + at, 0, bytes);
      add(terms, slot, buffer.dtype(), data + at, data + at, bytes);
      release(terms, start, slot);
    }
    return terms.receives;
  }
  const std::size_t part = buffer.bytes() / static_cast<std::size_t>(memory_.size());
  std::byte* own = data + static_cast<std::size_t>(memory_.rank()) * part;
  Lane& sums = lane(Kind::sums, start);
  for (std::size_t at = 0; at < part; at += most_bytes()) {
    const std::size_t bytes = std::min(most_bytes(), part - at);
    const int slot = exchange(terms, start, data + at, part, bytes);
    add(terms, slot, buffer.dtype(), own + at, own + at, bytes);
    release(terms, start, slot);
    HS_COMM_CUDA(communicator_, cudaEventRecord(added_, terms.receives));
    gather(sums, {added_, start.capture}, own + at, data + at, part, bytes);
  }
  return sums.receives;
}

void PeerCopies::gather(Lane& lane, const Start& start, const std::byte* own, std::byte* full,
                        std::size_t stride, std::size_t bytes) {
  const int rank = memory_.rank();
  const int slot = exchange(lane, start, own, 0, bytes);
  for (int other = 0; other < memory_.size(); ++other) {
    if (other == rank) continue;
    HS_COMM_CUDA(communicator_, cudaMemcpyAsync(full + static_cast<std::size_t>(other) * stride,
                                                memory_.place(slot, other, rank), bytes,
                                                cudaMemcpyDeviceToDevice, lane.receives));
    set(lane.receives, memory_.full(slot, other, rank), 0, communicator_);
  }
  release(lane, start, slot);
}

cudaStream_t PeerCopies::reduce_scatter(const Start& start, CView full, View shard) {
  Lane& terms = lane(Kind::terms, start);
  const std::byte* data = bytes_of(full);
  const std::size_t part = shard.bytes();
  const std::byte* own = data + static_cast<std::size_t>(memory_.rank()) * part;
  for (std::size_t at = 0; at < part; at += most_bytes()) {
    const std::size_t bytes = std::min(most_bytes(), part - at);
    const int slot = exchange(terms, start, data + at, part, bytes);
    add(terms, slot, full.dtype(), own + at, bytes_of(shard) + at, bytes);
    release(terms, start, slot);
  }
  return terms.receives;
}

cudaStream_t PeerCopies::all_gather(const Start& start, CView shard, View full) {
  Lane& sums = lane(Kind::sums, start);
  const std::size_t part = shard.bytes();
  std::byte* own = bytes_of(full) + static_cast<std::size_t>(memory_.rank()) * part;
  for (std::size_t at = 0; at < part; at += most_bytes()) {
    const std::size_t bytes = std::min(most_bytes(), part - at);
    gather(sums, start, bytes_of(shard) + at, bytes_of(full) + at, part, bytes);
  }
  if (own != bytes_of(shard)) {
    HS_COMM_CUDA(communicator_,
                 cudaMemcpyAsync(own, shard.raw(), part, cudaMemcpyDeviceToDevice, sums.receives));
  }
  return sums.receives;
}

}  // namespace hyperslab::comm
