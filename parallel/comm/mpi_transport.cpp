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

constexpr const char* kGroup = "background";
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
  HS_MPI(kGroup, MPI_Comm_dup(comm, &comm_));
  HS_MPI(kGroup, MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  HS_MPI(kGroup, MPI_Comm_set_name(comm_, kGroup));
  texts_->slots.resize(static_cast<std::size_t>(size_of_group(comm_, kGroup)));
}

MpiTransport::~MpiTransport() {
  const bool is_idle = request_ == MPI_REQUEST_NULL && messages_.empty();
  if (is_idle && may_free_mpi_handles()) MPI_Comm_free(&comm_);
  if (!is_idle) (void)texts_.release();  // MPI may still write there until the process ends
}

void MpiTransport::start_gathering(const std::string& text) {
  texts_->mine = text;
  texts_->slot = {};
  texts_->slot.length = static_cast<std::int64_t>(text.size());
  if (text.size() <= texts_->slot.text.size()) std::ranges::copy(text, texts_->slot.text.begin());
  is_long_ = false;
  HS_MPI(kGroup, MPI_Iallgather(&texts_->slot, sizeof(Slot), MPI_BYTE, texts_->slots.data(),
                                sizeof(Slot), MPI_BYTE, comm_, &request_));
}

bool MpiTransport::is_complete() {
  int done = 0;
  HS_MPI(kGroup, MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

bool MpiTransport::all_fit() const {
  return std::ranges::all_of(texts_->slots, [](const Slot& slot) {
    return slot.length <= static_cast<std::int64_t>(slot.text.size());
  });
}

void MpiTransport::start_long() {
  texts_->lengths.clear();
  std::int64_t total = 0;
  for (const Slot& slot : texts_->slots) {
    total += slot.length;
    if (total > INT_MAX) {
      throw Error(ExitCode::internal,
                  fmt::format("{}: texts of {} bytes are beyond {}", kGroup, total, INT_MAX));
    }
    texts_->lengths.push_back(static_cast<int>(slot.length));
  }
  texts_->begins.resize(texts_->lengths.size());
  std::exclusive_scan(texts_->lengths.begin(), texts_->lengths.end(), texts_->begins.begin(), 0);
  texts_->joined.resize(static_cast<std::size_t>(total));
  is_long_ = true;
  HS_MPI(kGroup, MPI_Iallgatherv(texts_->mine.data(), static_cast<int>(texts_->mine.size()),
                                 MPI_CHAR, texts_->joined.data(), texts_->lengths.data(),
                                 texts_->begins.data(), MPI_CHAR, comm_, &request_));
}

bool MpiTransport::advance_gathering(std::vector<std::string>& texts) {
  if (!is_complete()) return false;
  if (!is_long_ && !all_fit()) {
    start_long();
    if (!is_complete()) return false;
  }
  texts.clear();
  for (std::size_t i = 0; i < texts_->slots.size(); ++i) {
    const auto length = static_cast<std::size_t>(texts_->slots[i].length);
    const char* begin =
        is_long_ ? texts_->joined.data() + texts_->begins[i] : texts_->slots[i].text.data();
    texts.emplace_back(begin, length);
  }
  return true;
}

void MpiTransport::start_exchange(std::span<const BackgroundPeers::Parcel> sends,
                                  std::span<const BackgroundPeers::Parcel> receives) {
  for (const BackgroundPeers::Parcel& parcel : receives) {
    for_each_message(parcel, [&](char* data, int bytes) {
      HS_MPI(kGroup, MPI_Irecv(data, bytes, MPI_BYTE, parcel.rank, kParcelTag, comm_,
                               &messages_.emplace_back()));
    });
  }
  for (const BackgroundPeers::Parcel& parcel : sends) {
    for_each_message(parcel, [&](char* data, int bytes) {
      HS_MPI(kGroup, MPI_Isend(data, bytes, MPI_BYTE, parcel.rank, kParcelTag, comm_,
                               &messages_.emplace_back()));
    });
  }
}

bool MpiTransport::advance_exchange() {
  int done = 0;
  HS_MPI(kGroup, MPI_Testall(static_cast<int>(messages_.size()), messages_.data(), &done,
                             MPI_STATUSES_IGNORE));
  if (done != 0) messages_.clear();
  return done != 0;
}

}  // namespace hyperslab::comm
