// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/comm/communicator.hpp"
#include "hyperslab/comm/threads.hpp"
#include "hyperslab/core/activity.hpp"

namespace hyperslab::comm {

class BackgroundPeers;
class FlightRecorders;

/// The ranks that mpirun or srun started, and the host-side messages of setup and shutdown. One
/// object in main(); a program started without a launcher is a world of one rank.
class World final : public Peers {
 public:
  /// MPI_Init_thread with MPI_THREAD_FUNNELED and errors returned as codes. A rank that a launcher
  /// started is killed when its launcher dies. The ranks of a machine divide its cores among
  /// their threads, and Open MPI yields if there are more of them than cores. Throws Error(device)
  /// if srun started several tasks but MPI cannot connect them.
  World(int* argc, char*** argv);
  /// MPI_Finalize, unless the world was aborted or an exception is on its way through main.
  ~World() override;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  World(World&&) = delete;
  World& operator=(World&&) = delete;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  /// This rank's number among the ranks of its host, and how many there are.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }
  [[nodiscard]] const std::string& host() const override { return host_; }
  /// Threads that this rank computes with, and why. OpenMP's number of threads (and OpenBLAS's, if
  /// it is built with OpenMP) is set to it for the thread that made the world.
  [[nodiscard]] const ThreadShare& threads() const { return threads_; }

  /// A world of the ranks that give the same color, in the order of their ranks here; null for a
  /// negative color. Collective. local_rank() and local_size() stay the program's, as
  /// GPUs and cores are shared by all of them. To be destroyed before this world, which alone ends
  /// MPI; abort() of a part ends every rank of the program.
  [[nodiscard]] std::unique_ptr<World> part(int color);

  /// A communicator over all ranks for the data of a step; collective. On the CPU it is MPI, on
  /// CUDA NCCL on the GPU in use (the first one checks the GPUs and versions of all ranks; see
  /// gpus.hpp), or the self communicator for a single rank; on Device::meta it only counts. To be
  /// destroyed before the world, by all members in the same order.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(Device device, GroupRole role);

  /// Agreement for one background thread of every rank, while this thread goes on; collective. To
  /// be destroyed before the world.
  [[nodiscard]] std::unique_ptr<BackgroundPeers> background_peers();

  /// Communicators give the same bits in every run on the same ranks, also on CUDA, where NCCL is
  /// held to its ring (NCCL_ALGO=Ring). To be called by all ranks before the first communicator on
  /// CUDA. Throws Error(device) if NCCL_ALGO asks for something else.
  void set_deterministic();

  /// Collective host-side helpers over all ranks.
  void barrier();
  /// Every rank gets root's text.
  [[nodiscard]] std::string broadcast(const std::string& text, int root = 0);
  /// The texts of all ranks in rank order, on every rank.
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override;
  /// The payloads of all ranks in rank order on `root`, nothing on the others. Of any size: they
  /// go in messages of at most `message_bytes`, which is equal on all ranks.
  [[nodiscard]] std::vector<std::string> gather(const std::string& bytes, int root = 0,
                                                std::size_t message_bytes = std::size_t{1} << 30);
  [[nodiscard]] bool all(bool mine);
  [[nodiscard]] std::int64_t max(std::int64_t mine);
  [[nodiscard]] double sum(double mine);
  /// One number from this rank to another, which waits for it.
  void send(int rank, double number);
  [[nodiscard]] double receive(int rank);

  /// The present work of this process, for the watchdog; one for a world and its parts.
  [[nodiscard]] Activity& activity();

  /// Ends every rank of the program with `code` at once: MPI_Abort on the first call; never
  /// returns. Nothing is flushed.
  [[noreturn]] void abort(int code) noexcept;

 private:
  friend class Watchdog;
  class RecordedMessage;
  struct Impl;  ///< members that need mpi.h
  /// The flight recorders of the communicators of this process.
  [[nodiscard]] std::shared_ptr<FlightRecorders> flight_recorders() const;
  World(const World& whole, std::unique_ptr<Impl> impl);
  void share_threads();
  std::unique_ptr<Impl> impl_;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::string host_;
  ThreadShare threads_;
};

/// Name and version of the MPI library, one line.
[[nodiscard]] std::string library_version();

}  // namespace hyperslab::comm
