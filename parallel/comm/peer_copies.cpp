// SPDX-License-Identifier: Apache-2.0
#include "peer_copies.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "driver_function.hpp"
#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/error.hpp"
#include "mpi_check.hpp"
#include "nccl_check.hpp"
#include "peer_sums.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kPlaceBytes = std::size_t{8} << 20;  // larger messages go in parts
constexpr std::size_t kAlignment = 512;
/// Of the buffer of a call: with less, NCCL is as quick (14 us for 1 MiB of two H200).
constexpr std::size_t kLeastBytes = std::size_t{256} << 10;

using StreamValue = decltype(&cuStreamWaitValue32);

void check_driver(CUresult result, const char* call, const std::string& communicator) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ExitCode::device, "communicator " + communicator + ": " + call + " failed (" +
                                    std::to_string(static_cast<int>(result)) + ")");
}

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

/// What is enqueued on the stream next waits until the flag of this GPU is 1.
void wait_for(cudaStream_t stream, const std::uint32_t* flag, const std::string& communicator) {
  static const StreamValue wait = driver_function<StreamValue>(communicator, "cuStreamWaitValue32");
  check_driver(wait(stream, address_of(flag), 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32",
               communicator);
}

/// After everything that the stream did is visible to all GPUs.
void set(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value,
         const std::string& communicator) {
  static const StreamValue write =
      driver_function<StreamValue>(communicator, "cuStreamWriteValue32");
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
  if (size_of_group(group, communicator) != 2) return nullptr;
  const char* wish = std::getenv("HYPERSLAB_PEER_COPIES");
  int wanted = static_cast<int>(wish == nullptr || std::string_view(wish) != "0");
  HS_MPI(communicator, MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_LAND, group));
  if (wanted == 0) return nullptr;
  auto copies = std::unique_ptr<PeerCopies>(new PeerCopies(group, communicator, kPlaceBytes));
  if (!copies->mapped_->is_mapped()) return nullptr;
  copies->make_lanes();
  return copies;
}

PeerCopies::PeerCopies(MPI_Comm group, const std::string& communicator, std::size_t place_bytes)
    : communicator_(communicator),
      group_(group),
      rank_(rank_in(group, communicator)),
      place_bytes_(place_bytes),
      memory_(Device::cuda, kAlignment + std::size_t{2} * kSlots * place_bytes) {
  static_assert(kLanes * kSlots * sizeof(Flags) <= kAlignment);
  std::array<Flags, kLanes * kSlots> flags{};
  // The first lane of either kind, eager and in graphs: its slots are free before any message.
  for (int i = 0; i < kSlots; ++i) {
    flags.at(static_cast<std::size_t>(i)).free = 1;
    flags.at(static_cast<std::size_t>(2 * kSlots + i)).free = 1;
  }
  HS_COMM_CUDA(communicator_,
               cudaMemcpy(memory_.data(), flags.data(), sizeof flags, cudaMemcpyHostToDevice));
  mapped_ = std::make_unique<PeerMemory>(group, communicator, memory_.data(), memory_.bytes());
}

void PeerCopies::make_lanes() {
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
  auto* flags = static_cast<Flags*>(memory_.data());
  auto* place = static_cast<std::byte*>(memory_.data()) + kAlignment;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_.at(i);
    lane.direct = i % 2 == static_cast<std::size_t>(Kind::direct);
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
      slot.flags = flags++;
      if (!lane.direct) slot.place = std::exchange(place, place + place_bytes_);
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

std::shared_ptr<void> PeerCopies::share(void* memory, std::size_t bytes) {
  std::erase_if(shared_, [](const auto& each) { return each.expired(); });
  auto mapped = std::make_shared<PeerMemory>(group_, communicator_, memory, bytes);
  if (!mapped->is_mapped()) return nullptr;
  shared_.push_back(mapped);
  return mapped;
}

std::shared_ptr<const PeerMemory> PeerCopies::holder_of(CView view) const {
  for (const auto& each : shared_) {
    std::shared_ptr<const PeerMemory> memory = each.lock();
    if (memory && memory->holds(view.raw(), view.bytes())) return memory;
  }
  return nullptr;
}

bool PeerCopies::takes(Call call, CView full, CView shard, ReduceOp op) const {
  if (full.bytes() < kLeastBytes) return false;
  if (call == Call::all_gather) return is_shared(full);
  const std::size_t parts = call == Call::all_reduce ? 1 : 2;
  return op == ReduceOp::sum && adds_peer_terms(full.dtype()) &&
         full.bytes() % (parts * kSumBytes) == 0 && is_aligned(full) &&
         (!shard || is_aligned(shard));
}

PeerCopies::Slot& PeerCopies::exchange(Lane& lane, const Start& start, const void* from,
                                       std::size_t bytes, std::byte* to) {
  Slot& slot = lane.slots.at(static_cast<std::size_t>(lane.next));
  lane.next = (lane.next + 1) % kSlots;
  const auto flag_there = [&](std::uint32_t& flag) {
    return reinterpret_cast<std::uint32_t*>(mapped_->there(&flag));
  };
  // The wait for a slot must not hold up the reading of the message before, for which the other
  // member waits.
  const bool follows = slot.used && slot.capture == start.capture;
  if (follows) HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, slot.received, 0));
  if (!follows || lane.direct) {
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, start.after, 0));
  }
  // A slot is freed when it was read; shared memory, where it may be written, from here on.
  if (lane.direct) set(lane.frees, flag_there(slot.flags->free), 1, communicator_);
  wait_for(lane.frees, &slot.flags->free, communicator_);
  set(lane.frees, &slot.flags->free, 0, communicator_);
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.freed, lane.frees));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, slot.freed, 0));
  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, start.after, 0));
  HS_COMM_CUDA(communicator_, cudaMemcpyAsync(to != nullptr ? to : mapped_->there(slot.place), from,
                                              bytes, cudaMemcpyDeviceToDevice, lane.sends));
  set(lane.sends, flag_there(slot.flags->full), 1, communicator_);
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.sent, lane.sends));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.receives, slot.sent, 0));
  wait_for(lane.receives, &slot.flags->full, communicator_);
  return slot;
}

void PeerCopies::release(Lane& lane, const Start& start, Slot& slot) {
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.received, lane.receives));
  slot.used = true;
  slot.capture = start.capture;
}

cudaStream_t PeerCopies::send_direct(const Start& start, const void* from, std::size_t bytes,
                                     std::byte* to) {
  Lane& lane = this->lane(Kind::direct, start);
  Slot& slot = exchange(lane, start, from, bytes, to);
  set(lane.receives, &slot.flags->full, 0, communicator_);
  release(lane, start, slot);
  return lane.receives;
}

cudaStream_t PeerCopies::reduce(const Start& start, DType dtype, const std::byte* theirs,
                                const std::byte* own, std::byte* out, std::size_t bytes) {
  Lane& lane = this->lane(Kind::slots, start);
  for (std::size_t at = 0; at < bytes; at += place_bytes_) {
    const std::size_t count = std::min(place_bytes_, bytes - at);
    Slot& slot = exchange(lane, start, theirs + at, count);
    HS_COMM_CUDA(communicator_,
                 add_peer_terms(lane.receives, dtype, {own + at, slot.place, &slot.flags->full},
                                out + at, count));
    auto* free = reinterpret_cast<std::uint32_t*>(mapped_->there(&slot.flags->free));
    set(lane.receives, free, 1, communicator_);
    release(lane, start, slot);
  }
  return lane.receives;
}

cudaStream_t PeerCopies::all_reduce(const Start& start, View buffer) {
  std::byte* data = bytes_of(buffer);
  return reduce(start, buffer.dtype(), data, data, data, buffer.bytes());
}

cudaStream_t PeerCopies::reduce_scatter(const Start& start, CView full, View shard) {
  const std::byte* data = bytes_of(full);
  const std::size_t part = shard.bytes();
  return reduce(start, full.dtype(), other_part(data, part), own_part(data, part), bytes_of(shard),
                part);
}

cudaStream_t PeerCopies::reduce_scatter_others(const Start& start, View full, View shard,
                                               const Piece& piece) {
  const std::size_t element = size_of(full.dtype());
  const std::size_t part = full.bytes() / 2;
  const std::size_t begin = static_cast<std::size_t>(piece.begin) * element;
  std::byte* theirs = other_part(bytes_of(full), part);
  // The other member's shard is its part of `full` if this member's is.
  const bool in_place = bytes_of(shard) == own_part(bytes_of(full), part);
  std::byte* to = in_place ? theirs : bytes_of(shard);
  return send_direct(start, theirs + begin, static_cast<std::size_t>(piece.count) * element,
                     holder_of(shard)->there(to + begin));
}

cudaStream_t PeerCopies::all_gather_piece(const Start& start, View full, const Piece& piece) {
  const std::size_t element = size_of(full.dtype());
  const std::byte* own =
      own_part(bytes_of(full), full.bytes() / 2) + static_cast<std::size_t>(piece.begin) * element;
  return send_direct(start, own, static_cast<std::size_t>(piece.count) * element,
                     holder_of(full)->there(own));
}

cudaStream_t PeerCopies::all_gather(const Start& start, CView shard, View full) {
  std::byte* own = own_part(bytes_of(full), shard.bytes());
  cudaStream_t last = send_direct(start, shard.raw(), shard.bytes(), holder_of(full)->there(own));
  if (own != shard.raw()) {
    HS_COMM_CUDA(communicator_,
                 cudaMemcpyAsync(own, shard.raw(), shard.bytes(), cudaMemcpyDeviceToDevice, last));
  }
  return last;
}

}  // namespace hyperslab::comm
