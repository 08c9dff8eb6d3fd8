// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::comm {

/// The ranks that mpirun or srun started, and the host-side messages of setup and shutdown. One
/// object in main(); a program started without a launcher is a world of one rank.
class World {
 public:
  /// MPI_Init_thread with MPI_THREAD_FUNNELED and errors returned as codes. A rank that a launcher
  /// started is killed when its launcher dies. Throws Error(device) where srun started several
  /// tasks but MPI cannot connect them.
  World(int* argc, char*** argv);
  /// MPI_Finalize, unless the world was aborted or an exception is on its way through main.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  World(World&&) = delete;
  World& operator=(World&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// This rank's place among the ranks of its host, and how many there are.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  [[nodiscard]] const std::string& host() const { return host_; }

  /// A communicator over all ranks for the data of a step; collective. On the CPU it is MPI, or
  /// the self communicator for a single rank; on Device::meta it only counts. To be destroyed
  /// before the world.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(Device device, const std::string& name);

  /// Collective host-side helpers over all ranks.
  void barrier();
  /// Every rank gets root's text.
  [[nodiscard]] std::string broadcast(const std::string& text, int root = 0);
  /// The texts of all ranks in rank order, on every rank.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text);
  [[nodiscard]] bool all(bool mine);
  [[nodiscard]] std::int64_t max(std::int64_t mine);
  [[nodiscard]] double sum(double mine);

  /// Ends every rank with `code` at once: MPI_Abort on the first call; never returns. Nothing is
  /// flushed.
  [[noreturn]] void abort(int code) noexcept;

 private:
  struct Impl;  ///< what needs mpi.h
  std::unique_ptr<Impl> impl_;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::string host_;
};

/// Name and version of the MPI library, one line.
[[nodiscard]] std::string library_version();

}  // namespace hyperslab::comm
