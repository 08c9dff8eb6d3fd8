// SPDX-License-Identifier: Apache-2.0
#include "peer_slots.hpp"

#include <algorithm>
#include <vector>

#include "mpi_check.hpp"
#include "nccl_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr std::size_t kAlignment = 512;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

PeerSlots::PeerSlots(MPI_Comm group, const std::string& communicator, int slots, int with_places,
                     std::size_t bytes)
    : rank_(rank_in(group, communicator)),
      size_(size_of_group(group, communicator)),
      slots_(slots),
      place_bytes_(bytes / static_cast<std::size_t>(size_ - 1) / kAlignment * kAlignment) {
  const auto places = static_cast<std::size_t>(with_places) * static_cast<std::size_t>(size_ - 1);
  own_ = Buffer(Device::cuda, flag_bytes() + places * place_bytes_);
  std::vector<std::uint32_t> flags(flag_bytes() / sizeof(std::uint32_t), 0);
  std::fill_n(flags.begin(), with_places * kMostMembers, 1U);
  HS_COMM_CUDA(communicator,
               cudaMemcpy(own_.data(), flags.data(), flag_bytes(), cudaMemcpyHostToDevice));
  memory_ = std::make_unique<PeerMemory>(group, communicator, own_.data(), own_.bytes());
}

std::size_t PeerSlots::flag_bytes() const {
  return aligned(std::size_t{2} * static_cast<std::size_t>(slots_ * kMostMembers) *
                 sizeof(std::uint32_t));
}

std::byte* PeerSlots::place(int slot, int from, int to) const {
  const int index = slot * (size_ - 1) + (from < to ? from : from - 1);
  return memory_->start(to) + flag_bytes() + static_cast<std::size_t>(index) * place_bytes_;
}

std::uint32_t* PeerSlots::free(int slot, int from, int to) const {
  return reinterpret_cast<std::uint32_t*>(memory_->start(from)) + slot * kMostMembers + to;
}

std::uint32_t* PeerSlots::full(int slot, int from, int to) const {
  return reinterpret_cast<std::uint32_t*>(memory_->start(to)) + (slots_ + slot) * kMostMembers +
         from;
}

}  // namespace hyperslab::comm
