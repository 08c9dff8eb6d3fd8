// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "mpi_engine.hpp"

namespace hyperslab::comm {

/// Elements of one MPI call: MPI counts in int, and libraries multiply counts by members in int.
inline constexpr Dim kMaxCount = Dim{1} << 30;

/// Nonblocking MPI on CPU memory. Collectives whose full buffer has more than `max_count` elements
/// go in chunks. The same number of members gives the same bits each time.
class MpiCommunicator final : public Communicator {
 public:
  /// Takes over `own`, which no one else may use, and gives it the role's name.
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, MPI_Comm own, GroupRole role,
                  Dim max_count = kMaxCount);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  MpiCommunicator(MpiCommunicator&&) = delete;
  MpiCommunicator& operator=(MpiCommunicator&&) = delete;

  void progress() override { engine_->progress(); }
  /// The self communicator if a group has one member.
  std::unique_ptr<Communicator> split(int color, int key, GroupRole role) override;

 private:
  void do_all_reduce(Stream& after, View buffer, ReduceOp op, Ticket ticket) override;
  void do_reduce_scatter(Stream& after, View full, View shard, Ticket ticket) override;
  void do_all_gather(Stream& after, CView shard, View full, Ticket ticket) override;
  void do_all_to_all(Stream& after, CView sent, View received, Ticket ticket) override;
  void do_all_to_all_rows(Stream& after, CView own_sent, View own_received,
                          std::span<const Message> others, Ticket ticket) override;
  void do_broadcast(Stream& after, View buffer, int root, Ticket ticket) override;
  void do_exchange(Stream& after, std::span<const Message> messages, Ticket ticket) override;
  double do_wait(Stream& before, Ticket ticket) override;
  void do_barrier() override;
  [[nodiscard]] bool announces_arrivals() const override { return true; }
  void do_arrive(Ticket ticket) override;

  Operation& operation(Ticket ticket) { return operations_[ticket % kMaxUnderWay]; }
  void reduce_to_owners(View full, View shard, Operation& operation);
  void exchange_parts(CView sent, View received, Operation& operation);
  void send_messages(std::span<const Message> messages, Operation& operation);
  void broadcast_chunks(View buffer, int root, Operation& operation);

  std::shared_ptr<MpiEngine> engine_;
  MPI_Comm comm_;
  Dim max_count_;
  std::vector<Operation> operations_;  ///< by ticket, and one for barriers at the end
};

/// A communicator over a duplicate of `parent`; collective.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiEngine> engine,
                                                                  MPI_Comm parent, GroupRole role,
                                                                  Dim max_count = kMaxCount);

}  // namespace hyperslab::comm
