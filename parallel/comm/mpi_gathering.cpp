// SPDX-License-Identifier: Apache-2.0
#include "mpi_gathering.hpp"

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

}  // namespace

MpiGathering::MpiGathering(MPI_Comm comm) {
  HS_MPI(kName, MPI_Comm_dup(comm, &comm_));
  HS_MPI(kName, MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  HS_MPI(kName, MPI_Comm_set_name(comm_, kName));
  slots_.resize(static_cast<std::size_t>(size_of_group(comm_, kName)));
}

MpiGathering::~MpiGathering() {
  if (request_ == MPI_REQUEST_NULL && may_free_mpi_handles()) MPI_Comm_free(&comm_);
}

void MpiGathering::start(const std::string& text) {
  mine_ = text;
  slot_ = {};
  slot_.length = static_cast<std::int64_t>(text.size());
  if (text.size() <= slot_.text.size()) std::ranges::copy(text, slot_.text.begin());
  is_long_ = false;
  HS_MPI(kName, MPI_Iallgather(&slot_, sizeof(Slot), MPI_BYTE, slots_.data(), sizeof(Slot),
                               MPI_BYTE, comm_, &request_));
}

bool MpiGathering::is_complete() {
  int done = 0;
  HS_MPI(kName, MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

bool MpiGathering::all_fit() const {
  return std::ranges::all_of(slots_, [](const Slot& slot) {
    return slot.length <= static_cast<std::int64_t>(slot.text.size());
  });
}

void MpiGathering::start_long() {
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

bool MpiGathering::advance(std::vector<std::string>& texts) {
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

}  // namespace hyperslab::comm
