// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
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
  /// Memory that MPI reads and writes during a gathering.
  struct Texts {
    std::string mine;
    Slot slot;
    std::vector<Slot> slots;  ///< by rank
    std::vector<int> lengths;
    std::vector<int> begins;
    std::string joined;
  };
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::unique_ptr<Texts> texts_ = std::make_unique<Texts>();
  bool is_long_ = false;               ///< the second collective is in progress
  std::vector<MPI_Request> messages_;  ///< requests of an exchange
};

}  // namespace hyperslab::comm
