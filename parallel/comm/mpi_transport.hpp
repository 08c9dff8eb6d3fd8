// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/background_peers.hpp"

namespace hyperslab::comm {

/// Moves texts by non-blocking collectives on a communicator of its own, and parcels by messages.
/// Texts that fit into a slot take one collective: with few calls a step, each costs some steps.
class MpiTransport final : public BackgroundPeers::Transport {
 public:
  /// Duplicates `comm`; collective.
  explicit MpiTransport(MPI_Comm comm);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  MpiTransport(MpiTransport&&) = delete;
  MpiTransport& operator=(MpiTransport&&) = delete;

  void start_gathering(const std::string& text) override;
  [[nodiscard]] bool advance_gathering(std::vector<std::string>& texts) override;
  void start_exchange(std::span<const BackgroundPeers::Parcel> sends,
                      std::span<const BackgroundPeers::Parcel> receives) override;
  [[nodiscard]] bool advance_exchange() override;

 private:
  /// The length of a rank's text, and the text itself if it fits.
  struct Slot {
    std::int64_t length = 0;
    std::array<char, 504> text{};
  };
  [[nodiscard]] bool is_complete();
  [[nodiscard]] bool all_fit() const;
  void start_long();

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::string mine_;
  Slot slot_;
  std::vector<Slot> slots_;
  bool is_long_ = false;  ///< the second collective is under way
  std::vector<int> lengths_;
  std::vector<int> begins_;
  std::string joined_;
  std::vector<MPI_Request> messages_;  ///< of an exchange
};

}  // namespace hyperslab::comm
