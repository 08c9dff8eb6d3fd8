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

constexpr std::size_t kPlaceBytes = std::size_t{8} << 20;  // of all others' messages of a slot
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
  const char* wish = std::getenv("HYPERSLAB_PEER_COPIES");
  int wanted = static_cast<int>((wish == nullptr || std::string_view(wish) != "0") &&
                                size_of_group(group, communicator) <= PeerSlots::kMostMembers);
  HS_MPI(communicator, MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT, MPI_LAND, group));
  if (wanted == 0) return nullptr;
  constexpr int kWithPlaces = 2 * 2 * kSlots;
  auto slots =
      std::make_unique<PeerSlots>(group, communicator, kLanes * kSlots, kWithPlaces, kPlaceBytes);
  if (!slots->is_mapped()) return nullptr;
  return std::unique_ptr<PeerCopies>(new PeerCopies(communicator, group, std::move(slots)));
}

PeerCopies::PeerCopies(const std::string& communicator, MPI_Comm group,
                       std::unique_ptr<PeerSlots> slots)
    : communicator_(communicator), group_(group), slots_(std::move(slots)) {
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
  // Slots with places come first: of both kinds that need them, eager and in graphs.
  int next_slot = 0;
  for (const Kind kind : {Kind::terms, Kind::copies, Kind::direct}) {
    Lane& eager = lane(kind, {});
    Lane& captured = lane(kind, {.capture = 1});
    eager.frees = make_stream();
    eager.sends = make_stream();
    eager.receives = make_stream();
    // A capture and an eager call never enqueue at a time.
    captured.frees = eager.frees;
    captured.sends = eager.sends;
    captured.receives = eager.receives;
    for (Lane* each : {&eager, &captured}) {
      each->direct = kind == Kind::direct;
      each->first_slot = std::exchange(next_slot, next_slot + kSlots);
      for (Slot& slot : each->slots) slot = {make_event(), make_event(), make_event()};
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
  const bool sums = call != Call::all_gather;
  const std::size_t parts = call == Call::all_reduce && slots_->size() == 2
                                ? 1
                                : static_cast<std::size_t>(slots_->size());
  return full.bytes() >= kLeastBytes && full.bytes() % (parts * kSumBytes) == 0 &&
         is_aligned(full) && (!shard || is_aligned(shard)) &&
         (!sums || (op == ReduceOp::sum && adds_peer_terms(full.dtype())));
}

int PeerCopies::exchange(Lane& lane, const Start& start, const Message& message) {
  const int index = std::exchange(lane.next, (lane.next + 1) % kSlots);
  const int slot = lane.first_slot + index;
  Slot& mine = lane.slots.at(static_cast<std::size_t>(index));
  const int rank = slots_->rank();
  const bool follows = mine.used && mine.capture == start.capture;

  // The wait for a slot must not hold up the reading of the message before, for which others wait.
  if (follows) HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, mine.received, 0));
  if (!follows || lane.direct) {
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.frees, start.after, 0));
  }
  if (lane.direct) {
    each_other(
        [&](int other) { set(lane.frees, slots_->free(slot, other, rank), 1, communicator_); });
  }
  each_other([&](int other) {
    wait_for(lane.frees, slots_->free(slot, rank, other), communicator_);
    set(lane.frees, slots_->free(slot, rank, other), 0, communicator_);
  });
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.freed, lane.frees));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, mine.freed, 0));
  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.sends, start.after, 0));
  each_other([&](int other) {
    const auto member = static_cast<std::size_t>(other);
    std::byte* to = lane.direct ? message.memory->at(other, message.to + member * message.to_stride)
                                : slots_->place(slot, rank, other);
    HS_COMM_CUDA(communicator_,
                 cudaMemcpyAsync(to, message.from + member * message.from_stride, message.bytes,
                                 cudaMemcpyDeviceToDevice, lane.sends));
    set(lane.sends, slots_->full(slot, rank, other), 1, communicator_);
  });
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.sent, lane.sends));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(lane.receives, mine.sent, 0));
  each_other(
      [&](int other) { wait_for(lane.receives, slots_->full(slot, other, rank), communicator_); });
  return slot;
}

void PeerCopies::release(Lane& lane, const Start& start, int slot) {
  Slot& mine = lane.slots.at(static_cast<std::size_t>(slot - lane.first_slot));
  if (!lane.direct) {  // else with the next message
    each_other([&](int other) {
      set(lane.receives, slots_->free(slot, other, slots_->rank()), 1, communicator_);
    });
  }
  HS_COMM_CUDA(communicator_, cudaEventRecord(mine.received, lane.receives));
  mine.used = true;
  mine.capture = start.capture;
}

void PeerCopies::add(const Lane& lane, int slot, DType dtype, const std::byte* own, std::byte* out,
                     std::size_t bytes) {
  PeerTerms terms = {};
  const int rank = slots_->rank();
  for (int member = 0; member < slots_->size(); ++member) {
    if (member == rank && own == nullptr) continue;
    const auto i = static_cast<std::size_t>(terms.count++);
    terms.terms.at(i) = member == rank ? own : slots_->place(slot, member, rank);
    terms.flags.at(i) = member == rank ? nullptr : slots_->full(slot, member, rank);
  }
  HS_COMM_CUDA(communicator_, add_peer_terms(lane.receives, dtype, terms, out, bytes));
}

cudaStream_t PeerCopies::all_reduce(const Start& start, View buffer) {
  std::byte* data = bytes_of(buffer);
  Lane& terms = lane(Kind::terms, start);
  const std::size_t most = slots_->place_bytes();
  if (slots_->size() == 2) {
    for (std::size_t at = 0; at < buffer.bytes(); at += most) {
      const std::size_t bytes = std::min(most, buffer.bytes() - at);
      const int slot = exchange(terms, start, {.from = data + at, .bytes = bytes});
      add(terms, slot, buffer.dtype(), data + at, data + at, bytes);
      release(terms, start, slot);
    }
    return terms.receives;
  }
  const std::size_t part = buffer.bytes() / static_cast<std::size_t>(slots_->size());
  std::byte* own = data + static_cast<std::size_t>(slots_->rank()) * part;
  cudaStream_t last = nullptr;
  for (std::size_t at = 0; at < part; at += most) {
    const std::size_t bytes = std::min(most, part - at);
    const int slot =
        exchange(terms, start, {.from = data + at, .from_stride = part, .bytes = bytes});
    add(terms, slot, buffer.dtype(), own + at, own + at, bytes);
    release(terms, start, slot);
    HS_COMM_CUDA(communicator_, cudaEventRecord(added_, terms.receives));
    last = gather({added_, start.capture}, buffer, own + at, {part, at, at + bytes});
  }
  return last;
}

cudaStream_t PeerCopies::gather(const Start& start, View full, const std::byte* own,
                                const Piece& piece) {
  const int rank = slots_->rank();
  const std::shared_ptr<const PeerMemory> holder = holder_of(full);
  Lane& lane = this->lane(holder == nullptr ? Kind::copies : Kind::direct, start);
  const std::size_t bytes = piece.end - piece.begin;
  std::byte* data = bytes_of(full) + piece.begin;
  const int slot = exchange(lane, start,
                            {.from = own,
                             .bytes = bytes,
                             .memory = holder,
                             .to = data + static_cast<std::size_t>(rank) * piece.part});
  each_other([&](int other) {
    if (holder == nullptr) {
      HS_COMM_CUDA(communicator_,
                   cudaMemcpyAsync(data + static_cast<std::size_t>(other) * piece.part,
                                   slots_->place(slot, other, rank), bytes,
                                   cudaMemcpyDeviceToDevice, lane.receives));
    }
    set(lane.receives, slots_->full(slot, other, rank), 0, communicator_);
  });
  release(lane, start, slot);
  return lane.receives;
}

PeerCopies::Piece PeerCopies::piece_of(CView full, Dim begin, Dim count) const {
  const std::size_t element = size_of(full.dtype());
  return {full.bytes() / static_cast<std::size_t>(slots_->size()),
          static_cast<std::size_t>(begin) * element,
          static_cast<std::size_t>(begin + count) * element};
}

cudaStream_t PeerCopies::reduce(const Start& start, CView full, View shard, const Piece& piece,
                                bool with_own) {
  Lane& terms = lane(Kind::terms, start);
  const std::byte* data = bytes_of(full);
  const std::byte* own = data + static_cast<std::size_t>(slots_->rank()) * piece.part;
  for (std::size_t at = piece.begin; at < piece.end; at += slots_->place_bytes()) {
    const std::size_t bytes = std::min(slots_->place_bytes(), piece.end - at);
    const int slot =
        exchange(terms, start, {.from = data + at, .from_stride = piece.part, .bytes = bytes});
    add(terms, slot, full.dtype(), with_own ? own + at : nullptr, bytes_of(shard) + at, bytes);
    release(terms, start, slot);
  }
  return terms.receives;
}

cudaStream_t PeerCopies::reduce_scatter(const Start& start, CView full, View shard) {
  return reduce(start, full, shard, piece_of(full, 0, shard.numel()), true);
}

cudaStream_t PeerCopies::reduce_scatter_others(const Start& start, View full, View shard, Dim begin,
                                               Dim count) {
  const Piece piece = piece_of(full, begin, count);
  const std::shared_ptr<const PeerMemory> holder = holder_of(shard);
  if (slots_->size() > 2 || holder == nullptr) return reduce(start, full, shard, piece, false);
  // The only other term is the sum. It goes to the shard of the other member, which is its part of
  // `full` if this member's is.
  std::byte* data = bytes_of(full);
  const bool in_place =
      bytes_of(shard) == data + static_cast<std::size_t>(slots_->rank()) * piece.part;
  Lane& lane = this->lane(Kind::direct, start);
  const int slot = exchange(lane, start,
                            {.from = data + piece.begin,
                             .from_stride = piece.part,
                             .bytes = piece.end - piece.begin,
                             .memory = holder,
                             .to = (in_place ? data : bytes_of(shard)) + piece.begin,
                             .to_stride = in_place ? piece.part : 0});
  each_other([&](int other) {
    set(lane.receives, slots_->full(slot, other, slots_->rank()), 0, communicator_);
  });
  release(lane, start, slot);
  return lane.receives;
}

cudaStream_t PeerCopies::all_gather_piece(const Start& start, View full, Dim begin, Dim count) {
  const Piece piece = piece_of(full, begin, count);
  const std::byte* own =
      bytes_of(full) + static_cast<std::size_t>(slots_->rank()) * piece.part + piece.begin;
  return gather(start, full, own, piece);
}

cudaStream_t PeerCopies::all_gather(const Start& start, CView shard, View full) {
  const std::size_t part = shard.bytes();
  const std::size_t most = is_shared(full) ? part : slots_->place_bytes();
  cudaStream_t last = nullptr;
  for (std::size_t at = 0; at < part; at += most) {
    last = gather(start, full, bytes_of(shard) + at, {part, at, std::min(at + most, part)});
  }
  std::byte* own = bytes_of(full) + static_cast<std::size_t>(slots_->rank()) * part;
  if (own != bytes_of(shard)) {
    HS_COMM_CUDA(communicator_,
                 cudaMemcpyAsync(own, shard.raw(), part, cudaMemcpyDeviceToDevice, last));
  }
  return last;
}

}  // namespace hyperslab::comm
