// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <memory>
#include <string>
#include <vector>

#include "busy_clock.hpp"
#include "event_pool.hpp"
#include "flight_recorder.hpp"
#include "hyperslab/comm/communicator.hpp"
#include "peer_copies.hpp"
#include "peer_sums.hpp"

namespace hyperslab::comm {

/// Blocking NCCL on the GPU that was in use when it was made, on a stream of its own. An operation
/// waits by an event for the stream `after`, and the stream of wait() by another for the operation;
/// the host waits for nothing. Both work while these streams are being captured: the own stream
/// then joins the capture. Members meet over MPI alone: in barriers, and with a new unique id for
/// every group, so that a split asks nothing of the operations in progress. Never aborted: a lost
/// member is found by the watchdog.
///
/// In a tensor group of two, PeerCopies take pieces and gathers and PeerSums take small sums; in a
/// data group of two, PeerCopies take gathers and sums. Both have streams of their own and are for
/// shared memory; gathers and sums of few bytes stay with NCCL.
class NcclCommunicator final : public Communicator {
 public:
  /// Takes over `own`, which has at least two members and no one else may use; collective.
  NcclCommunicator(MPI_Comm own, GroupRole role, std::shared_ptr<FlightRecorders> recorders);
  /// Collective; leaves everything to the end of the process while an exception unwinds.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  NcclCommunicator(NcclCommunicator&&) = delete;
  NcclCommunicator& operator=(NcclCommunicator&&) = delete;

  void progress() override {}
  [[nodiscard]] bool is_shared(CView view) const override;
  /// The self communicator if a group has one member.
  std::unique_ptr<Communicator> split(int color, int key, GroupRole role) override;
  [[nodiscard]] const std::uint64_t* device_nanoseconds() const override {
    return clock_->device_nanoseconds();
  }

 private:
  /// Between its call and its wait.
  struct Operation {
    cudaEvent_t done = nullptr;
    unsigned long long capture = 0;  ///< the id of the capture it is part of, 0 for none
  };

  void do_all_reduce(Stream& after, View buffer, ReduceOp op, Ticket ticket) override;
  void do_reduce_scatter(Stream& after, View full, View shard, Ticket ticket) override;
  void do_all_gather(Stream& after, CView shard, View full, Ticket ticket) override;
  void do_reduce_scatter_others(Stream& after, View full, View shard, Piece piece,
                                Ticket ticket) override;
  void do_all_gather_piece(Stream& after, View full, Piece piece, Ticket ticket) override;
  void do_all_to_all(Stream& after, CView sent, View received, Ticket ticket) override;
  void do_all_to_all_rows(Stream& after, CView own_sent, View own_received,
                          std::span<const Message> others, Ticket ticket) override;
  void do_broadcast(Stream& after, View buffer, int root, Ticket ticket) override;
  void do_exchange(Stream& after, std::span<const Message> messages, Ticket ticket) override;
  double do_wait(Stream& before, Ticket ticket) override;
  void do_barrier() override;
  [[nodiscard]] std::shared_ptr<void> do_share(const Arena& arena) override;
  [[nodiscard]] double do_collect_seconds() override;

  Operation& operation(Ticket ticket) { return operations_[ticket % kMaxUnderWay]; }
  void initialize_nccl();
  void issue_messages(std::span<const Message> messages);
  void fork(Stream& after, Ticket ticket);
  template <class Issue>
  void run(Stream& after, Call call, Ticket ticket, Issue&& issue);
  template <class Issue>
  void run_copies(Stream& after, Call call, Ticket ticket, Issue&& issue);
  [[nodiscard]] unsigned long long capture_of(cudaStream_t stream) const;
  [[nodiscard]] bool copies_sum(Stream& after, View full) const;
  void check_peers() const;

  MPI_Comm comm_;
  std::shared_ptr<FlightRecorders> flight_recorders_;  ///< for groups that are split off, too
  ncclComm_t nccl_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t fork_ = nullptr;
  std::unique_ptr<EventPool> events_;
  std::unique_ptr<BusyClock> clock_;
  std::unique_ptr<PeerCopies> peer_copies_;  ///< null if there are none
  std::unique_ptr<PeerSums> peer_sums_;      ///< likewise
  double collected_seconds_ = 0;
  std::vector<Operation> operations_;  ///< by ticket
};

}  // namespace hyperslab::comm
