// SPDX-License-Identifier: Apache-2.0
#include "peer_copies.hpp"

#include <cuda.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "hyperslab/core/cuda_check.hpp"
#include "hyperslab/core/driver_function.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "mpi_check.hpp"
#include "nccl_check.hpp"
#include "peer_add.hpp"
#include "same_layout.hpp"

namespace hyperslab::comm {
namespace {

// NCCL moves everything if members do not map each other's flags, without which they have no
// PeerSums either.
constexpr std::string_view kEverything = "everything";

using StreamValue = decltype(&cuStreamWaitValue32);

void check_driver(CUresult result, const char* call, const std::string& communicator) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ExitCode::device, "communicator " + communicator + ": " + call + " failed (" +
                                    std::to_string(static_cast<int>(result)) + ")");
}

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

/// Makes the next work on the stream wait until the flag of this GPU is 1.
void wait_for(cudaStream_t stream, const std::uint32_t* flag, const std::string& communicator) {
  static const auto wait =
      driver_function<StreamValue>("communicator " + communicator, "cuStreamWaitValue32");
  check_driver(wait(stream, address_of(flag), 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32",
               communicator);
}

/// After everything that the stream did is visible to all GPUs.
void set(cudaStream_t stream, const std::uint32_t* flag, std::uint32_t value,
         const std::string& communicator) {
  static const auto write =
      driver_function<StreamValue>("communicator " + communicator, "cuStreamWriteValue32");
  check_driver(write(stream, address_of(flag), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32", communicator);
}

/// A member's setting of HYPERSLAB_PEER_COPIES for its group; the least of all members holds.
enum class Wish : int { unknown, no, yes };

std::string_view wish_text() {
  const char* value = std::getenv("HYPERSLAB_PEER_COPIES");
  return value == nullptr ? "1" : value;
}

Wish wish_for(PeerCopies::AllReduces sums) {
  const std::string_view text = wish_text();
  if (text == "tensor") return sums == PeerCopies::AllReduces::no ? Wish::yes : Wish::no;
  if (text == "0" || text == "1") return text == "1" ? Wish::yes : Wish::no;
  return Wish::unknown;
}

std::byte* bytes_of(View view) { return static_cast<std::byte*>(view.raw()); }

}  // namespace

std::unique_ptr<PeerCopies> PeerCopies::make(MPI_Comm group, const std::string& communicator,
                                             AllReduces sums) {
  int wish = static_cast<int>(wish_for(sums));
  HS_MPI(communicator, MPI_Allreduce(MPI_IN_PLACE, &wish, 1, MPI_INT, MPI_MIN, group));
  if (wish == static_cast<int>(Wish::unknown)) {
    throw Error(ExitCode::usage,
                fmt::format("communicator {}: HYPERSLAB_PEER_COPIES is {} on rank {} of it; on all "
                            "ranks expected: 0 (no copies), 1 (in groups of two, as without the "
                            "variable) or tensor (between two tensor or expert ranks alone)",
                            communicator, wish_text(), rank_in(group, communicator)));
  }
  if (wish == static_cast<int>(Wish::no) || size_of_group(group, communicator) != 2) return nullptr;
  auto copies = std::unique_ptr<PeerCopies>(new PeerCopies(group, communicator, sums));
  if (!copies->maps(*copies->mapped_, kEverything)) return nullptr;
  copies->make_lanes();
  return copies;
}

PeerCopies::PeerCopies(MPI_Comm group, const std::string& communicator, AllReduces sums)
    : communicator_(communicator),
      group_(group),
      rank_(rank_in(group, communicator)),
      sums_(sums),
      memory_(Device::cuda, kFlagBytes) {
  HS_COMM_CUDA(communicator_, cudaMemset(memory_.data(), 0, kFlagBytes));
  HS_COMM_CUDA(communicator_, cudaDeviceSynchronize());  // before the other member writes there
  mapped_ = std::make_unique<PeerMemory>(group, communicator, memory_.data(), memory_.bytes());
}

cudaStream_t PeerCopies::make_stream() const {
  int least = 0;
  int greatest = 0;
  HS_COMM_CUDA(communicator_, cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  HS_COMM_CUDA(communicator_,
               cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return stream;
}

void PeerCopies::make_lanes() {
  for (cudaStream_t* stream : {&frees_, &sends_, &receives_}) *stream = make_stream();
  auto* flags = static_cast<Flags*>(memory_.data());
  for (Lane& lane : lanes_) {
    for (Slot& slot : lane.slots) {
      slot.flags = flags++;
      for (cudaEvent_t* event : {&slot.freed, &slot.sent, &slot.received}) {
        HS_COMM_CUDA(communicator_, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
      }
    }
  }
}

void PeerCopies::make_rooms() {
  Buffer taken(Device::cuda, kRooms * kRoomBytes);
  auto mapped = std::make_unique<PeerMemory>(group_, communicator_, taken.data(), taken.bytes());
  if (!maps(*mapped, "all-reduces")) return;
  memory_of_rooms_ = std::move(taken);
  mapped_rooms_ = std::move(mapped);
  adds_ = make_stream();
  rooms_.resize(kRooms);
  auto* memory = static_cast<std::byte*>(memory_of_rooms_.data());
  for (Room& room : rooms_) {
    room.memory = memory;
    memory += kRoomBytes;
    HS_COMM_CUDA(communicator_, cudaEventCreateWithFlags(&room.added, cudaEventDisableTiming));
  }
}

PeerCopies::~PeerCopies() {
  const std::string who = "communicator " + communicator_;
  for (cudaStream_t stream : {frees_, sends_, receives_, adds_}) {
    if (stream == nullptr) continue;
    log_if_cuda_failed(cudaStreamSynchronize(stream), who, "cudaStreamSynchronize");
    log_if_cuda_failed(cudaStreamDestroy(stream), who, "cudaStreamDestroy");
  }
  for (const Lane& lane : lanes_) {
    for (const Slot& slot : lane.slots) {
      for (cudaEvent_t event : {slot.freed, slot.sent, slot.received}) {
        if (event != nullptr) log_if_cuda_failed(cudaEventDestroy(event), who, "cudaEventDestroy");
      }
    }
  }
  for (const Room& room : rooms_) {
    if (room.added == nullptr) continue;
    log_if_cuda_failed(cudaEventDestroy(room.added), who, "cudaEventDestroy");
  }
}

std::string PeerCopies::left_to_nccl(const Arena& arena) const {
  return sums_ == AllReduces::no ? "all but small sums" : "what is in arena " + arena.name();
}

std::string PeerCopies::refusal_text(std::string_view moved, const std::string& reason) const {
  return fmt::format(
      "communicator {}: NCCL moves {} between its two ranks, as they cannot write into each "
      "other's memory: {}",
      communicator_, moved, reason);
}

bool PeerCopies::maps(const PeerMemory& memory, std::string_view moved) const {
  if (memory.is_mapped() || rank_ != 0) return memory.is_mapped();
  const std::string text = refusal_text(moved, memory.refusal());
  memory.is_on_one_host() ? log::info(text) : log::debug(text);  // between hosts, no surprise
  return false;
}

std::shared_ptr<void> PeerCopies::share(const Arena& arena) {
  std::erase_if(shared_, [](const auto& each) { return each.expired(); });
  const std::string difference = layout_difference(group_, communicator_, arena);
  if (!difference.empty()) {
    if (rank_ == 0) log::warn(refusal_text(left_to_nccl(arena), difference));
    return nullptr;
  }
  const Buffer& memory = arena.buffer();
  auto mapped = std::make_shared<PeerMemory>(group_, communicator_, memory.data(), memory.bytes());
  if (!maps(*mapped, left_to_nccl(arena))) return nullptr;
  if (sums_ == AllReduces::yes && !mapped_rooms_) make_rooms();
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

bool PeerCopies::takes_gather(CView full) const {
  constexpr std::size_t kLeastBytes = std::size_t{256} << 10;  // with less, NCCL is as quick
  return full.bytes() >= kLeastBytes && is_shared(full);
}

bool PeerCopies::takes_sum(CView full) const {
  constexpr std::size_t kLeastBytes = std::size_t{1} << 20;  // with less, NCCL is as quick
  return !rooms_.empty() && adds_received(full.dtype()) && full.bytes() >= kLeastBytes &&
         is_shared(full);
}

cudaEvent_t PeerCopies::exchange(const Start& start, const void* from, std::size_t bytes,
                                 std::byte* to) {
  Lane& lane = lanes_.at(start.capture == 0 ? 0 : 1);
  Slot& slot = lane.slots.at(static_cast<std::size_t>(lane.next));
  lane.next = (lane.next + 1) % kSlots;
  Flags& mine = *slot.flags;
  const auto flag_there = [&](std::uint32_t& flag) {
    return reinterpret_cast<std::uint32_t*>(mapped_->there(&flag));
  };
  // Waiting for the other member must not hold up this one's work on the message before.
  if (slot.used && slot.capture == start.capture) {
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(frees_, slot.received, 0));
  }
  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(frees_, start.after, 0));
  set(frees_, flag_there(mine.free), 1, communicator_);
  wait_for(frees_, &mine.free, communicator_);
  set(frees_, &mine.free, 0, communicator_);
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.freed, frees_));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(sends_, slot.freed, 0));
  HS_COMM_CUDA(communicator_, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, sends_));
  set(sends_, flag_there(mine.full), 1, communicator_);
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.sent, sends_));

  HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(receives_, slot.sent, 0));
  wait_for(receives_, &mine.full, communicator_);
  set(receives_, &mine.full, 0, communicator_);
  HS_COMM_CUDA(communicator_, cudaEventRecord(slot.received, receives_));
  slot.used = true;
  slot.capture = start.capture;
  return slot.received;
}

/// Each member sums up one of two parts of `full`, the first of `first_bytes`: in pieces, which the
/// other one sends to a room here. A piece of sums goes back while the next one is received.
cudaStream_t PeerCopies::sum_parts(const Start& start, View full, std::size_t first_bytes,
                                   Gathered gathered) {
  require(start.capture == 0, "copies of a graph and eager ones would share their rooms");
  const std::array<Range, 2> parts = {
      {{0, first_bytes}, {first_bytes, full.bytes() - first_bytes}}};
  const Range& own = parts.at(static_cast<std::size_t>(rank_));
  const Range& other = parts.at(static_cast<std::size_t>(1 - rank_));
  const auto piece_of = [](const Range& part, std::size_t index) -> Range {
    const std::size_t begin = std::min(part.bytes, index * kRoomBytes);
    return {part.begin + begin, std::min(kRoomBytes, part.bytes - begin)};
  };
  const std::shared_ptr<const PeerMemory> holder = holder_of(full);
  std::byte* const data = bytes_of(full);
  const std::size_t longer = std::max(own.bytes, other.bytes);
  const std::size_t pieces = (longer + kRoomBytes - 1) / kRoomBytes;
  const auto send_sums = [&](std::size_t index) {
    const Range piece = piece_of(own, index);
    const Start once_added = {rooms_.at(index % kRooms).added, start.capture};
    (void)exchange(once_added, data + piece.begin, piece.bytes, holder->there(data + piece.begin));
  };
  for (std::size_t i = 0; i < pieces; ++i) {
    Room& room = rooms_.at(i % kRooms);
    if (room.used) HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(frees_, room.added, 0));
    const Range sent = piece_of(other, i);
    const cudaEvent_t received =
        exchange(start, data + sent.begin, sent.bytes, mapped_rooms_->there(room.memory));
    if (gathered == Gathered::yes && i > 0) send_sums(i - 1);
    const Range mine = piece_of(own, i);
    HS_COMM_CUDA(communicator_, cudaStreamWaitEvent(adds_, received, 0));
    HS_COMM_CUDA(communicator_,
                 add_received(adds_, full.dtype(), data + mine.begin, room.memory, mine.bytes));
    HS_COMM_CUDA(communicator_, cudaEventRecord(room.added, adds_));
    room.used = true;
  }
  if (gathered == Gathered::no) return adds_;
  send_sums(pieces - 1);
  return receives_;
}

cudaStream_t PeerCopies::all_reduce(const Start& start, View full) {
  constexpr std::size_t kVectorBytes = 16;
  return sum_parts(start, full, full.bytes() / 2 / kVectorBytes * kVectorBytes, Gathered::yes);
}

cudaStream_t PeerCopies::reduce_scatter(const Start& start, View full) {
  return sum_parts(start, full, full.bytes() / 2, Gathered::no);
}

cudaStream_t PeerCopies::reduce_scatter_others(const Start& start, View full, View shard,
                                               Piece piece) {
  const std::size_t element = size_of(full.dtype());
  const std::size_t part = full.bytes() / 2;
  const std::size_t begin = static_cast<std::size_t>(piece.begin) * element;
  std::byte* theirs = other_part(bytes_of(full), part);
  // The other member's shard is its part of `full` if this member's is.
  const bool in_place = bytes_of(shard) == own_part(bytes_of(full), part);
  std::byte* to = in_place ? theirs : bytes_of(shard);
  (void)exchange(start, theirs + begin, static_cast<std::size_t>(piece.count) * element,
                 holder_of(shard)->there(to + begin));
  return receives_;
}

cudaStream_t PeerCopies::all_gather_piece(const Start& start, View full, Piece piece) {
  const std::size_t element = size_of(full.dtype());
  const std::byte* own =
      own_part(bytes_of(full), full.bytes() / 2) + static_cast<std::size_t>(piece.begin) * element;
  (void)exchange(start, own, static_cast<std::size_t>(piece.count) * element,
                 holder_of(full)->there(own));
  return receives_;
}

cudaStream_t PeerCopies::all_gather(const Start& start, CView shard, View full) {
  std::byte* own = own_part(bytes_of(full), shard.bytes());
  (void)exchange(start, shard.raw(), shard.bytes(), holder_of(full)->there(own));
  if (own != shard.raw()) {
    HS_COMM_CUDA(communicator_, cudaMemcpyAsync(own, shard.raw(), shard.bytes(),
                                                cudaMemcpyDeviceToDevice, receives_));
  }
  return receives_;
}

}  // namespace hyperslab::comm
