// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/comm/background_peers.hpp"

namespace hyperslab::comm {

/// Gathers texts by non-blocking collectives on a communicator of its own. Texts that fit into a
/// slot take one collective: with few calls a step, each costs some steps.
class MpiGathering final : public BackgroundPeers::Transport {
 public:
  /// Duplicates `comm`; collective.
  explicit MpiGathering(MPI_Comm comm);
  ~MpiGathering() override;
  MpiGathering(const MpiGathering&) = delete;
  MpiGathering& operator=(const MpiGathering&) = delete;
  MpiGathering(MpiGathering&&) = delete;
  MpiGathering& operator=(MpiGathering&&) = delete;

  void start(const std::string& text) override;
  [[nodiscard]] bool advance(std::vector<std::string>& texts) override;

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
};

}  // namespace hyperslab::comm
