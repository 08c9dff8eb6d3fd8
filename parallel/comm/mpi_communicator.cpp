// SPDX-License-Identifier: Apache-2.0
#include "mpi_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "hyperslab/core/log.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

constexpr int kTag = 0;  // messages between two members match by order alone

/// Elements [begin, begin + count) of a view as one dimension.
template <class AnyView>
AnyView part(AnyView view, Dim begin, Dim count) {
  return view.flat().slice(begin, count);
}

/// Calls visit(begin, count) for pieces of at most max_count elements, once for an empty range.
template <class Visit>
void for_chunks(Dim numel, Dim max_count, Visit visit) {
  Dim begin = 0;
  do {
    const Dim count = std::min(numel - begin, max_count);
    visit(begin, static_cast<int>(count));
    begin += count;
  } while (begin < numel);
}

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiEngine> engine, MPI_Comm own, GroupRole role,
                                 Dim max_count)
    : Communicator(role, rank_in(own, name_of(role)), size_of_group(own, name_of(role)),
                   Device::cpu),
      engine_(std::move(engine)),
      comm_(own),
      max_count_(max_count),
      operations_(kMaxUnderWay + 1) {
  HS_MPI(name(), MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  HS_MPI(name(), MPI_Comm_set_name(comm_, name().c_str()));
  for (Operation& each : operations_) each.communicator = &name();
  record_calls(engine_->flight_recorders().add(role, leader_of(comm_, name())));
}

MpiCommunicator::~MpiCommunicator() {
  engine_->drop(operations_);
  if (!may_free_mpi_handles()) return;
  if (under_way() > 0) {
    log::warn(fmt::format("communicator {}: destroyed with {} operations not waited for", name(),
                          under_way()));
  }
  if (MPI_Comm_free(&comm_) != MPI_SUCCESS) {
    log::warn(fmt::format("communicator {}: MPI_Comm_free failed", name()));
  }
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key, GroupRole role) {
  if (color < 0) refuse("split", fmt::format("color {} of {} is negative", color, name_of(role)));
  MPI_Comm own = MPI_COMM_NULL;
  HS_MPI(name(), MPI_Comm_split(comm_, color, key, &own));
  if (size_of_group(own, name_of(role)) > 1) {
    return std::make_unique<MpiCommunicator>(engine_, own, role, max_count_);
  }
  HS_MPI(name_of(role), MPI_Comm_free(&own));
  return make_self_communicator(role);
}

void MpiCommunicator::do_all_reduce(Stream&, View buffer, ReduceOp op, Ticket ticket) {
  const MPI_Datatype type = engine_->types().type(buffer.dtype());
  const MPI_Op mpi_op = engine_->types().op(buffer.dtype(), op);
  for_chunks(buffer.numel(), max_count_, [&](Dim begin, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    HS_MPI(name(), MPI_Iallreduce(MPI_IN_PLACE, part(buffer, begin, count).raw(), count, type,
                                  mpi_op, comm_, &request));
    engine_->add(request, operation(ticket));
  });
}

void MpiCommunicator::do_reduce_scatter(Stream&, View full, View shard, Ticket ticket) {
  Operation& mine = operation(ticket);
  if (full.numel() > max_count_) return reduce_to_owners(full, shard, mine);
  const View own = part(full, rank() * shard.numel(), shard.numel());
  // MPI_IN_PLACE would put the result at the start of `full`, and other overlap is forbidden.
  const bool in_place = shard.bytes() > 0 && own.raw() == shard.raw();
  const View result = in_place ? engine_->redirect(mine, shard) : shard;
  const MPI_Datatype type = engine_->types().type(full.dtype());
  const MPI_Op op = engine_->types().op(full.dtype(), ReduceOp::sum);
  MPI_Request request = MPI_REQUEST_NULL;
  HS_MPI(name(),
         MPI_Ireduce_scatter_block(full.raw(), result.raw(), static_cast<int>(shard.numel()), type,
                                   op, comm_, &request));
  engine_->add(request, mine);
}

/// Chunks of a reduce-scatter are strided in `full`, so each owner's part is reduced to it alone.
void MpiCommunicator::reduce_to_owners(View full, View shard, Operation& mine) {
  const MPI_Datatype type = engine_->types().type(full.dtype());
  const MPI_Op op = engine_->types().op(full.dtype(), ReduceOp::sum);
  const Dim n = shard.numel();
  for (int owner = 0; owner < size(); ++owner) {
    for_chunks(n, max_count_, [&](Dim begin, int count) {
      void* result = owner == rank() ? part(shard, begin, count).raw() : nullptr;
      const void* input = part(full, owner * n + begin, count).raw();
      if (input == result) input = MPI_IN_PLACE;
      MPI_Request request = MPI_REQUEST_NULL;
      HS_MPI(name(), MPI_Ireduce(input, result, count, type, op, owner, comm_, &request));
      engine_->add(request, mine);
    });
  }
}

void MpiCommunicator::do_all_gather(Stream&, CView shard, View full, Ticket ticket) {
  const Dim n = shard.numel();
  // MPI wants all members in place or none; so every member puts its shard in place first.
  const View own = part(full, rank() * n, n);
  if (n > 0 && own.raw() != shard.raw()) std::memcpy(own.raw(), shard.raw(), shard.bytes());
  if (full.numel() > max_count_) {
    for (int owner = 0; owner < size(); ++owner) {
      broadcast_chunks(part(full, owner * n, n), owner, operation(ticket));
    }
    return;
  }
  const MPI_Datatype type = engine_->types().type(full.dtype());
  MPI_Request request = MPI_REQUEST_NULL;
  HS_MPI(name(), MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, full.raw(), static_cast<int>(n),
                                type, comm_, &request));
  engine_->add(request, operation(ticket));
}

void MpiCommunicator::do_all_to_all(Stream&, CView sent, View received, Ticket ticket) {
  const Dim n = sent.numel() / size();
  if (sent.numel() > max_count_) return exchange_parts(sent, received, operation(ticket));
  const MPI_Datatype type = engine_->types().type(sent.dtype());
  MPI_Request request = MPI_REQUEST_NULL;
  HS_MPI(name(), MPI_Ialltoall(sent.raw(), static_cast<int>(n), type, received.raw(),
                               static_cast<int>(n), type, comm_, &request));
  engine_->add(request, operation(ticket));
}

/// One message for each member: displacements of more elements have no place in an int.
void MpiCommunicator::exchange_parts(CView sent, View received, Operation& mine) {
  const Dim n = sent.numel() / size();
  std::vector<Message> messages;
  for (int member = 0; member < size(); ++member) {
    const CView to = part(sent, member * n, n);
    const View from = part(received, member * n, n);
    if (member == rank()) {
      std::memcpy(from.raw(), to.raw(), to.bytes());
      continue;
    }
    messages.push_back({.send = {}, .recv = from, .peer = member});
    messages.push_back({.send = to, .recv = {}, .peer = member});
  }
  send_messages(messages, mine);
}

/// Messages, as the counts of a collective would have to live until its end.
void MpiCommunicator::do_all_to_all_rows(Stream&, CView own_sent, View own_received,
                                         std::span<const Message> others, Ticket ticket) {
  if (own_sent.bytes() > 0) std::memcpy(own_received.raw(), own_sent.raw(), own_sent.bytes());
  send_messages(others, operation(ticket));
}

void MpiCommunicator::do_broadcast(Stream&, View buffer, int root, Ticket ticket) {
  broadcast_chunks(buffer, root, operation(ticket));
}

void MpiCommunicator::broadcast_chunks(View buffer, int root, Operation& mine) {
  const MPI_Datatype type = engine_->types().type(buffer.dtype());
  for_chunks(buffer.numel(), max_count_, [&](Dim begin, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    HS_MPI(name(),
           MPI_Ibcast(part(buffer, begin, count).raw(), count, type, root, comm_, &request));
    engine_->add(request, mine);
  });
}

void MpiCommunicator::do_exchange(Stream&, std::span<const Message> messages, Ticket ticket) {
  send_messages(messages, operation(ticket));
}

void MpiCommunicator::send_messages(std::span<const Message> messages, Operation& mine) {
  MPI_Request request = MPI_REQUEST_NULL;
  for (const Message& message : messages) {
    const View recv = message.recv;
    if (!recv) continue;
    const MPI_Datatype type = engine_->types().type(recv.dtype());
    for_chunks(recv.numel(), max_count_, [&](Dim begin, int count) {
      const View piece = part(recv, begin, count);
      HS_MPI(name(), MPI_Irecv(piece.raw(), count, type, message.peer, kTag, comm_, &request));
      engine_->add(request, mine, static_cast<std::int64_t>(piece.bytes()));
    });
  }
  for (const Message& message : messages) {
    const CView send = message.send;
    if (!send) continue;
    const MPI_Datatype type = engine_->types().type(send.dtype());
    for_chunks(send.numel(), max_count_, [&](Dim begin, int count) {
      HS_MPI(name(), MPI_Isend(part(send, begin, count).raw(), count, type, message.peer, kTag,
                               comm_, &request));
      engine_->add(request, mine);
    });
  }
}

double MpiCommunicator::do_wait(Stream&, Ticket ticket) {
  Operation& mine = operation(ticket);
  engine_->finish(mine);
  return std::exchange(mine.end_seconds, 0);
}

void MpiCommunicator::do_arrive(Ticket ticket) {
  MPI_Request request = MPI_REQUEST_NULL;
  HS_MPI(name(), MPI_Ibarrier(comm_, &request));
  engine_->add(request, operation(ticket));
}

void MpiCommunicator::do_barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  HS_MPI(name(), MPI_Ibarrier(comm_, &request));
  engine_->add(request, operations_.back());
  engine_->finish(operations_.back());
}

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiEngine> engine,
                                                    MPI_Comm parent, GroupRole role,
                                                    Dim max_count) {
  MPI_Comm own = MPI_COMM_NULL;
  HS_MPI(name_of(role), MPI_Comm_dup(parent, &own));
  return std::make_unique<MpiCommunicator>(std::move(engine), own, role, max_count);
}

}  // namespace hyperslab::comm
