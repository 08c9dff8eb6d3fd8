// SPDX-License-Identifier: Apache-2.0
#include "mpi_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstddef>
#include <numeric>

#include "hyperslab/core/error.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr const char* kName = "background";
constexpr std::size_t kMostInMessage = std::size_t{1} << 30;
constexpr int kParcelTag = 1;

/// Calls `message` with the address and size of each part of a parcel.
template <class Message>
void for_each_message(const BackgroundPeers::Parcel& parcel, const Message& message) {
  for (std::size_t begin = 0; begin < parcel.bytes; begin += kMostInMessage) {
    message(static_cast<char*>(parcel.data) + begin,
            static_cast<int>(std::min(kMostInMessage, parcel.bytes - begin)));
  }
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm comm) {
  HS_MPI(kName, MPI_Comm_dup(comm, &comm_));
  HS_MPI(kName, MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  HS_MPI(kName, MPI_Comm_set_name(comm_, kName));
  slots_.resize(static_cast<std::size_t>(size_of_group(comm_, kName)));
}

MpiTransport::~MpiTransport() {
  const bool is_idle = request_ == MPI_REQUEST_NULL && messages_.empty();
  if (is_idle && may_free_mpi_handles()) MPI_Comm_free(&comm_);
}

void MpiTransport::start_gathering(const std::string& text) {
  mine_ = text;
  slot_ = {};
  slot_.length = static_cast<std::int64_t>(text.size());
  if (text.size() <= slot_.text.size()) std::ranges::copy(text, slot_.text.begin());
  is_long_ = false;
  HS_MPI(kName, MPI_Iallgather(&slot_, sizeof(Slot), MPI_BYTE, slots_.data(), sizeof(Slot),
                               MPI_BYTE, comm_, &request_));
}

bool MpiTransport::is_complete() {
  int done = 0;
  HS_MPI(kName, MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

bool MpiTransport::all_fit() const {
  return std::ranges::all_of(slots_, [](const Slot& slot) {
    return slot.length <= static_cast<std::int64_t>(slot.text.size());
  });
}

void MpiTransport::start_long() {
  lengths_.clear();
  std::int64_t total = 0;
  for (const Slot& slot : slots_) {
    total += slot.length;
    if (total > INT_MAX) {
      throw Error(ExitCode::internal,
                  fmt::format("{}: texts of {} bytes are beyond {}", kName, total, INT_MAX));
    }
    lengths_.push_back(static_cast<int>(slot.length));
  }
  begins_.resize(lengths_.size());
  std::exclusive_scan(lengths_.begin(), lengths_.end(), begins_.begin(), 0);
  joined_.resize(static_cast<std::size_t>(total));
  is_long_ = true;
  HS_MPI(kName,
         MPI_Iallgatherv(mine_.data(), static_cast<int>(mine_.size()), MPI_CHAR, joined_.data(),
                         lengths_.data(), begins_.data(), MPI_CHAR, comm_, &request_));
}

bool MpiTransport::advance_gathering(std::vector<std::string>& texts) {
  if (!is_complete()) return false;
  if (!is_long_ && !all_fit()) {
    start_long();
    if (!is_complete()) return false;
  }
  texts.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const auto length = static_cast<std::size_t>(slots_[i].length);
    const char* begin = is_long_ ? joined_.data() + begins_[i] : slots_[i].text.data();
    texts.emplace_back(begin, length);
  }
  return true;
}

void MpiTransport::start_exchange(std::span<const BackgroundPeers::Parcel> sends,
                                  std::span<const BackgroundPeers::Parcel> receives) {
  for (const BackgroundPeers::Parcel& parcel : receives) {
    for_each_message(parcel, [&](char* data, int bytes) {
      HS_MPI(kName, MPI_Irecv(data, bytes, MPI_BYTE, parcel.rank, kParcelTag, comm_,
                              &messages_.emplace_back()));
    });
  }
  for (const BackgroundPeers::Parcel& parcel : sends) {
    for_each_message(parcel, [&](char* data, int bytes) {
      HS_MPI(kName, MPI_Isend(data, bytes, MPI_BYTE, parcel.rank, kParcelTag, comm_,
                              &messages_.emplace_back()));
    });
  }
}

bool MpiTransport::advance_exchange() {
  int done = 0;
  HS_MPI(kName, MPI_Testall(static_cast<int>(messages_.size()), messages_.data(), &done,
                            MPI_STATUSES_IGNORE));
  if (done != 0) messages_.clear();
  return done != 0;
}

}  // namespace hyperslab::comm
