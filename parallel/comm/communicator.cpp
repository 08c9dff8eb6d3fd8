// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/communicator.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "flight_recorder.hpp"
#include "hyperslab/comm/component.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/operation_list.hpp"

namespace hyperslab::comm {
std::string_view name_of(Call call) {
  switch (call) {
    case Call::all_reduce: return "all_reduce";
    case Call::reduce_scatter: return "reduce_scatter";
    case Call::all_gather: return "all_gather";
    case Call::all_to_all: return "all_to_all";
    case Call::broadcast: return "broadcast";
    case Call::send: return "send";
    case Call::recv: return "recv";
    case Call::barrier: return "barrier";
    case Call::share: return "share";
  }
  return "?";
}

Communicator::Communicator(GroupRole role, int rank, int size, Device device)
    : role_(role),
      name_(comm::name_of(role)),
      rank_(rank),
      size_(size),
      device_(device),
      open_(kMaxUnderWay) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ExitCode::internal,
                fmt::format("communicator {}: no member {} in a group of {}", name_, rank, size));
  }
}

void Communicator::refuse(std::string_view call, const std::string& reason) const {
  throw Error(ExitCode::internal, fmt::format("communicator {} (member {} of {}): {}: {}", name_,
                                              rank_, size_, call, reason));
}

void Communicator::count(Call call, std::size_t bytes) {
  ++traffic_.calls[static_cast<std::size_t>(call)];
  traffic_.bytes[static_cast<std::size_t>(call)] += static_cast<std::int64_t>(bytes);
}

/// The host starts operations of the CPU, so it waits for the work before them.
void Communicator::await(Stream& after) {
  if (!after.has_thread()) return;
  const Event event = after.record();
  while (!event.is_complete()) {
    progress();
    sched_yield();
  }
  event.wait();
}

/// In a plan.
void Communicator::record(Stream& after, Call call, std::size_t bytes) const {
  if (after.operations() == nullptr || call == Call::barrier) return;
  Operation& added = after.operations()->emplace_back();
  added.kind = call == Call::send ? Operation::Kind::exchange : Operation::Kind::collective;
  added.name = comm::name_of(call);
  added.group = comm::name_of(role_);
  added.ticket = next_ticket_;
  added.bytes = static_cast<double>(bytes);
  if (call != Call::send) return;
  for (const Message& message : messages_) {
    const bool sends = static_cast<bool>(message.send);
    const std::size_t size = sends ? message.send.bytes() : message.recv.bytes();
    added.messages.push_back({sends, message.peer, static_cast<double>(size)});
  }
}

Ticket Communicator::open(Stream& after, Call call, std::size_t bytes) {
  if (in_group_) refuse(name_of(call), "called between group_begin and group_end");
  Open& slot = open_[next_ticket_ % kMaxUnderWay];
  if (slot.ticket != 0) {
    refuse(name_of(call), fmt::format("ticket {}, {} operations ago, was not waited for",
                                      slot.ticket, kMaxUnderWay));
  }
  if (after.device() != Device::meta) fault::reach("collective.call");
  await(after);
  record(after, call, bytes);
  slot = {next_ticket_, call, after.device(), now_seconds(), static_cast<std::int64_t>(bytes)};
  if (call != Call::barrier && after.device() == Device::cpu) {
    ++traffic_.stamped;
    traffic_.call_moments += slot.start_seconds;
  }
  ++under_way_;
  // An arrival would hide the newest call that moves data.
  if (flight_recorder_ && call != Call::barrier) flight_recorder_->called(call, next_ticket_);
  if (recorder_ != nullptr && after.device() == Device::cuda) {
    constexpr double kNotSeen = std::numeric_limits<double>::quiet_NaN();
    trace(*recorder_, slot, next_ticket_, kNotSeen, kNotSeen);
  }
  return next_ticket_++;
}

Ticket Communicator::all_reduce(Stream& after, View buffer, ReduceOp op) {
  check_view(after.device(), Call::all_reduce, buffer, "buffer");
  check_reducible(Call::all_reduce, buffer);
  const Ticket ticket = open(after, Call::all_reduce, buffer.bytes());
  count(Call::all_reduce, buffer.bytes());
  if (after.device() != Device::meta) do_all_reduce(after, buffer, op, ticket);
  return ticket;
}

Ticket Communicator::reduce_scatter(Stream& after, View full, View shard) {
  check_view(after.device(), Call::reduce_scatter, full, "full");
  check_view(after.device(), Call::reduce_scatter, shard, "shard");
  check_reducible(Call::reduce_scatter, full);
  check_shard(Call::reduce_scatter, full, shard);
  const Ticket ticket = open(after, Call::reduce_scatter, full.bytes());
  count(Call::reduce_scatter, full.bytes());
  if (after.device() != Device::meta) do_reduce_scatter(after, full, shard, ticket);
  return ticket;
}

Ticket Communicator::reduce_scatter_others(Context& ctx, View full, View shard, Dim begin,
                                           Dim count) {
  Stream& after = ctx.stream();
  check_view(after.device(), Call::reduce_scatter, full, "full");
  check_view(after.device(), Call::reduce_scatter, shard, "shard");
  check_reducible(Call::reduce_scatter, full);
  check_shard(Call::reduce_scatter, full, shard);
  check_piece(Call::reduce_scatter, full, begin, count);
  check_shared(Call::reduce_scatter, shard);
  const std::size_t bytes = static_cast<std::size_t>(count * size_) * size_of(full.dtype());
  const Ticket ticket = open(after, Call::reduce_scatter, bytes);
  this->count(Call::reduce_scatter, bytes);
  do_reduce_scatter_others(after, full, shard, {begin, count}, ticket);
  return ticket;
}

Ticket Communicator::all_gather_piece(Context& ctx, View full, Dim begin, Dim count) {
  Stream& after = ctx.stream();
  check_view(after.device(), Call::all_gather, full, "full");
  check_piece(Call::all_gather, full, begin, count);
  const std::size_t bytes = static_cast<std::size_t>(count * size_) * size_of(full.dtype());
  const Ticket ticket = open(after, Call::all_gather, bytes);
  this->count(Call::all_gather, bytes);
  do_all_gather_piece(after, full, {begin, count}, ticket);
  return ticket;
}

// Only who shares memory gets here.
void Communicator::do_reduce_scatter_others(Stream& /*after*/, View /*full*/, View /*shard*/,
                                            Piece /*piece*/, Ticket /*ticket*/) {
  refuse("reduce_scatter_others",
         "a transport that shares memory does this, and this one has none");
}
void Communicator::do_all_gather_piece(Stream& /*after*/, View /*full*/, Piece /*piece*/,
                                       Ticket /*ticket*/) {
  refuse("all_gather_piece", "a transport that shares memory does this, and this one has none");
}

Ticket Communicator::all_gather(Stream& after, CView shard, View full) {
  check_view(after.device(), Call::all_gather, shard, "shard");
  check_view(after.device(), Call::all_gather, full, "full");
  check_shard(Call::all_gather, full, shard);
  const Ticket ticket = open(after, Call::all_gather, full.bytes());
  count(Call::all_gather, full.bytes());
  if (after.device() != Device::meta) do_all_gather(after, shard, full, ticket);
  return ticket;
}

Ticket Communicator::all_to_all(Stream& after, CView sent, View received) {
  check_view(after.device(), Call::all_to_all, sent, "sent");
  check_view(after.device(), Call::all_to_all, received, "received");
  check_parts(Call::all_to_all, sent, received);
  const Ticket ticket = open(after, Call::all_to_all, sent.bytes());
  count(Call::all_to_all, sent.bytes());
  if (after.device() != Device::meta) do_all_to_all(after, sent, received, ticket);
  return ticket;
}

Ticket Communicator::all_to_all_rows(Stream& after, CView sent, std::span<const Dim> sent_rows,
                                     View received, std::span<const Dim> received_rows) {
  check_view(after.device(), Call::all_to_all, sent, "sent");
  check_view(after.device(), Call::all_to_all, received, "received");
  check_rows(sent, sent_rows, received, received_rows);
  messages_.clear();
  std::size_t bytes = 0;
  Dim sent_before = 0;
  Dim received_before = 0;
  CView own_sent;
  View own_received;
  for (int member = 0; member < size_; ++member) {
    const auto at = static_cast<std::size_t>(member);
    const CView to = sent.slice(sent_before, sent_rows[at]);
    const View from = received.slice(received_before, received_rows[at]);
    sent_before += sent_rows[at];
    received_before += received_rows[at];
    bytes += to.bytes();
    if (member == rank_) {
      own_sent = to;
      own_received = from;
      continue;
    }
    if (to.numel() > 0) messages_.push_back({.send = to, .recv = {}, .peer = member});
    if (from.numel() > 0) messages_.push_back({.send = {}, .recv = from, .peer = member});
  }
  const Ticket ticket = open(after, Call::all_to_all, bytes);
  count(Call::all_to_all, bytes);
  if (after.device() != Device::meta) {
    do_all_to_all_rows(after, own_sent, own_received, messages_, ticket);
  }
  return ticket;
}

void Communicator::do_all_to_all_rows(Stream& /*after*/, CView /*own_sent*/, View /*own_received*/,
                                      std::span<const Message> /*others*/, Ticket /*ticket*/) {
  refuse("all_to_all_rows", "this transport does not have it");
}

Ticket Communicator::broadcast(Stream& after, View buffer, int root) {
  check_view(after.device(), Call::broadcast, buffer, "buffer");
  check_member(Call::broadcast, root, "root");
  const Ticket ticket = open(after, Call::broadcast, buffer.bytes());
  count(Call::broadcast, buffer.bytes());
  if (after.device() != Device::meta) do_broadcast(after, buffer, root, ticket);
  return ticket;
}

void Communicator::group_begin() {
  if (in_group_) refuse("group_begin", "the group before it has not ended");
  in_group_ = true;
  messages_.clear();
}

void Communicator::send(Context& ctx, CView buffer, int peer) {
  check_message(ctx.device(), Call::send, buffer, peer);
  count(Call::send, buffer.bytes());
  messages_.push_back({.send = buffer, .recv = {}, .peer = peer});
  ctx.recorder().add_message(
      {comm::name_of(role_), next_ticket_, true, peer, static_cast<std::int64_t>(buffer.bytes())});
}

void Communicator::recv(Context& ctx, View buffer, int peer) {
  check_message(ctx.device(), Call::recv, buffer, peer);
  count(Call::recv, buffer.bytes());
  messages_.push_back({.send = {}, .recv = buffer, .peer = peer});
  ctx.recorder().add_message(
      {comm::name_of(role_), next_ticket_, false, peer, static_cast<std::int64_t>(buffer.bytes())});
}

Ticket Communicator::group_end(Stream& after) {
  if (!in_group_) refuse("group_end", "no group was begun");
  in_group_ = false;
  std::size_t bytes = 0;
  for (const Message& message : messages_) {
    bytes += message.send ? message.send.bytes() : message.recv.bytes();
  }
  const Ticket ticket = open(after, Call::send, bytes);
  if (after.device() != Device::meta) do_exchange(after, messages_, ticket);
  return ticket;
}

Ticket Communicator::arrive(Context& ctx) {
  if (size_ == 1 || ctx.device() != Device::cpu || !announces_arrivals()) return 0;
  const Ticket ticket = open(ctx.stream(), Call::barrier, 0);
  do_arrive(ticket);
  return ticket;
}

double Communicator::wait(Context& ctx, Stream& before, Ticket ticket) {
  Open& slot = open_[ticket % kMaxUnderWay];
  if (ticket == 0 || slot.ticket != ticket) {
    refuse("wait", fmt::format("ticket {} is not in progress (waited for already, or not of this "
                               "communicator)",
                               ticket));
  }
  if (slot.device != before.device()) {
    refuse("wait",
           fmt::format("ticket {} is of a stream on {}, not {}", ticket,
                       hyperslab::name_of(slot.device), hyperslab::name_of(before.device())));
  }
  slot.ticket = 0;
  --under_way_;
  if (before.device() == Device::meta) {
    if (OperationList* list = before.operations()) {
      list->push_back({.kind = Operation::Kind::wait,
                       .name = comm::name_of(slot.call),
                       .component = ctx.recorder().component().name,
                       .phase = ctx.recorder().phase(),
                       .microbatch = ctx.recorder().microbatch(),
                       .group = comm::name_of(role_),
                       .ticket = ticket});
    }
    return 0;
  }

  const Scope scope(ctx.recorder(), kCommunicationComponent);
  const double begin = now_seconds();
  // Arrivals are left out, as in open(): no member has recorded the call, so all would seem late.
  if (flight_recorder_ && slot.call != Call::barrier)
    flight_recorder_->wait_begins(slot.call, ticket);
  const double end = std::max(do_wait(before, ticket), slot.start_seconds);
  if (flight_recorder_) flight_recorder_->wait_ends();
  if (slot.call == Call::barrier) return end;  // the ticket is arrive()'s
  traffic_.exposed_seconds += now_seconds() - begin;
  traffic_.seconds += end - slot.start_seconds;
  const bool reduction = slot.call == Call::all_reduce || slot.call == Call::reduce_scatter;
  if (device_ == Device::cuda) return 0;
  traffic_.newest_end = end;
  trace(ctx.recorder(), slot, ticket, begin, end);
  if (reduction && report_reductions_) ctx.recorder().add_reduction(slot.start_seconds, end);
  return end;
}

void Communicator::trace(Recorder& recorder, const Open& operation, Ticket ticket,
                         double wait_seconds, double end_seconds) const {
  if (size_ == 1) return;
  recorder.add_operation(
      {.group = comm::name_of(role_),
       .operation = operation.call == Call::send ? "exchange" : name_of(operation.call),
       .ticket = ticket,
       .bytes = operation.bytes,
       .call_seconds = operation.start_seconds,
       .wait_seconds = wait_seconds,
       .end_seconds = end_seconds});
}

/// Members meet in `work`; the watchdog names it if they do not come.
template <class Work>
void Communicator::meet(Call call, Work&& work) {
  if (flight_recorder_) flight_recorder_->wait_begins(call, next_ticket_ - 1);
  work();
  if (flight_recorder_) flight_recorder_->wait_ends();
}

std::shared_ptr<void> Communicator::share(const Arena& arena) {
  std::shared_ptr<void> shared;
  meet(Call::share, [&] { shared = do_share(arena); });
  if (!shared) return nullptr;
  void* const which = shared.get();
  return {which, [this, shared = std::move(shared)](void*) mutable {
            meet(Call::share, [&] { shared.reset(); });
          }};
}

void Communicator::barrier() {
  if (in_group_) refuse("barrier", "called between group_begin and group_end");
  count(Call::barrier, 0);
  const double begin = now_seconds();
  meet(Call::barrier, [&] { do_barrier(); });
  const double seconds = now_seconds() - begin;
  traffic_.seconds += seconds;
  traffic_.exposed_seconds += seconds;
}

double Communicator::collect_seconds() {
  const double seconds = do_collect_seconds();
  traffic_.seconds += seconds;
  return seconds;
}

}  // namespace hyperslab::comm
