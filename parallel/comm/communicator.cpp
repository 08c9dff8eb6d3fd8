// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "hyperslab/comm/component.hpp"
#include "hyperslab/core/error.hpp"
#include "trail.hpp"

namespace hyperslab::comm {
namespace {

std::uintptr_t address(CView view) { return reinterpret_cast<std::uintptr_t>(view.raw()); }

bool overlap(CView a, CView b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  return address(a) < address(b) + b.bytes() && address(b) < address(a) + a.bytes();
}

}  // namespace

std::string_view name_of(Call call) {
  switch (call) {
    case Call::all_reduce: return "all_reduce";
    case Call::reduce_scatter: return "reduce_scatter";
    case Call::all_gather: return "all_gather";
    case Call::broadcast: return "broadcast";
    case Call::send: return "send";
    case Call::recv: return "recv";
    case Call::barrier: return "barrier";
  }
  return "?";
}

Communicator::Communicator(std::string name, int rank, int size, Device device)
    : name_(std::move(name)), rank_(rank), size_(size), device_(device), open_(kMaxUnderWay) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(ExitCode::internal,
                fmt::format("communicator {}: no member {} in a group of {}", name_, rank, size));
  }
}

void Communicator::refuse(std::string_view call, const std::string& reason) const {
  throw Error(ExitCode::internal, fmt::format("communicator {} (member {} of {}): {}: {}", name_,
                                              rank_, size_, call, reason));
}

void Communicator::check_view(const Context& ctx, Call call, CView view,
                              std::string_view what) const {
  if (ctx.device() != Device::meta && ctx.device() != device_) {
    refuse(name_of(call),
           fmt::format("the context is on {}, wanted {}", hyperslab::name_of(ctx.device()),
                       hyperslab::name_of(device_)));
  }
  if (!view) refuse(name_of(call), fmt::format("{} is missing", what));
  if (view.device() != ctx.device()) {
    refuse(name_of(call),
           fmt::format("{} is on {}, its context on {}", what, hyperslab::name_of(view.device()),
                       hyperslab::name_of(ctx.device())));
  }
}

void Communicator::check_reducible(Call call, CView view) const {
  if (view.dtype() == DType::u16 || view.dtype() == DType::u8) {
    refuse(name_of(call), fmt::format("cannot reduce {}, wanted f64, f32, bf16, f16, i64 or i32",
                                      hyperslab::name_of(view.dtype())));
  }
}

void Communicator::check_shard(Call call, CView full, CView shard) const {
  if (full.dtype() != shard.dtype()) {
    refuse(name_of(call), fmt::format("full holds {}, shard {}", hyperslab::name_of(full.dtype()),
                                      hyperslab::name_of(shard.dtype())));
  }
  if (full.numel() != size_ * shard.numel()) {
    refuse(name_of(call), fmt::format("full has {} elements, wanted {} members x {} of shard = {}",
                                      full.numel(), size_, shard.numel(), size_ * shard.numel()));
  }
  const auto own = address(full) + static_cast<std::size_t>(rank_) * shard.bytes();
  if (full.device() != Device::meta && overlap(full, shard) && address(shard) != own) {
    refuse(name_of(call), fmt::format("shard overlaps full at byte {}, its own part is at byte {}",
                                      static_cast<std::int64_t>(address(shard) - address(full)),
                                      own - address(full)));
  }
}

void Communicator::check_member(Call call, int member, std::string_view what) const {
  if (member < 0 || member >= size_) {
    refuse(name_of(call),
           fmt::format("{} {} is not a member, wanted 0 to {}", what, member, size_ - 1));
  }
}

void Communicator::count(Call call, std::size_t bytes) {
  ++traffic_.calls[static_cast<std::size_t>(call)];
  traffic_.bytes[static_cast<std::size_t>(call)] += static_cast<std::int64_t>(bytes);
}

Ticket Communicator::open(const Context& ctx, Call call) {
  if (in_group_) refuse(name_of(call), "called between group_begin and group_end");
  Open& slot = open_[next_ticket_ % kMaxUnderWay];
  if (slot.ticket != 0) {
    refuse(name_of(call), fmt::format("ticket {}, {} operations ago, was not waited for",
                                      slot.ticket, kMaxUnderWay));
  }
  slot = {next_ticket_, call, ctx.device(), now_seconds()};
  ++under_way_;
  // What tells of arrivals alone would hide the newest call that moves data.
  if (trail_ && call != Call::barrier) trail_->called(call, next_ticket_);
  return next_ticket_++;
}

Ticket Communicator::all_reduce(Context& ctx, View buffer, ReduceOp op) {
  check_view(ctx, Call::all_reduce, buffer, "buffer");
  check_reducible(Call::all_reduce, buffer);
  const Ticket ticket = open(ctx, Call::all_reduce);
  count(Call::all_reduce, buffer.bytes());
  if (ctx.device() != Device::meta) do_all_reduce(ctx, buffer, op, ticket);
  return ticket;
}

Ticket Communicator::reduce_scatter(Context& ctx, View full, View shard) {
  check_view(ctx, Call::reduce_scatter, full, "full");
  check_view(ctx, Call::reduce_scatter, shard, "shard");
  check_reducible(Call::reduce_scatter, full);
  check_shard(Call::reduce_scatter, full, shard);
  const Ticket ticket = open(ctx, Call::reduce_scatter);
  count(Call::reduce_scatter, full.bytes());
  if (ctx.device() != Device::meta) do_reduce_scatter(ctx, full, shard, ticket);
  return ticket;
}

Ticket Communicator::all_gather(Context& ctx, CView shard, View full) {
  check_view(ctx, Call::all_gather, shard, "shard");
  check_view(ctx, Call::all_gather, full, "full");
  check_shard(Call::all_gather, full, shard);
  const Ticket ticket = open(ctx, Call::all_gather);
  count(Call::all_gather, full.bytes());
  if (ctx.device() != Device::meta) do_all_gather(ctx, shard, full, ticket);
  return ticket;
}

Ticket Communicator::broadcast(Context& ctx, View buffer, int root) {
  check_view(ctx, Call::broadcast, buffer, "buffer");
  check_member(Call::broadcast, root, "root");
  const Ticket ticket = open(ctx, Call::broadcast);
  count(Call::broadcast, buffer.bytes());
  if (ctx.device() != Device::meta) do_broadcast(ctx, buffer, root, ticket);
  return ticket;
}

void Communicator::group_begin() {
  if (in_group_) refuse("group_begin", "the group before it has not ended");
  in_group_ = true;
  messages_.clear();
}

void Communicator::check_message(const Context& ctx, Call call, CView buffer, int peer) const {
  if (!in_group_) refuse(name_of(call), "called outside group_begin and group_end");
  check_view(ctx, call, buffer, "buffer");
  check_member(call, peer, "peer");
  if (ctx.device() == Device::meta) return;
  for (const Message& other : messages_) {
    const bool shared = other.recv ? overlap(other.recv, buffer)
                                   : call == Call::recv && overlap(other.send, buffer);
    if (shared) refuse(name_of(call), "buffer overlaps another one of the group");
  }
}

void Communicator::send(Context& ctx, CView buffer, int peer) {
  check_message(ctx, Call::send, buffer, peer);
  count(Call::send, buffer.bytes());
  messages_.push_back({.send = buffer, .recv = {}, .peer = peer});
}

void Communicator::recv(Context& ctx, View buffer, int peer) {
  check_message(ctx, Call::recv, buffer, peer);
  count(Call::recv, buffer.bytes());
  messages_.push_back({.send = {}, .recv = buffer, .peer = peer});
}

Ticket Communicator::group_end(Context& ctx) {
  if (!in_group_) refuse("group_end", "no group was begun");
  in_group_ = false;
  const Ticket ticket = open(ctx, Call::send);
  if (ctx.device() != Device::meta) do_exchange(ctx, messages_, ticket);
  return ticket;
}

Ticket Communicator::arrive(Context& ctx) {
  if (size_ == 1 || ctx.device() != Device::cpu || !tells_arrivals()) return 0;
  const Ticket ticket = open(ctx, Call::barrier);
  do_arrive(ticket);
  return ticket;
}

double Communicator::wait(Context& ctx, Ticket ticket) {
  Open& slot = open_[ticket % kMaxUnderWay];
  if (ticket == 0 || slot.ticket != ticket) {
    refuse("wait", fmt::format("ticket {} is not under way (waited for already, or not of this "
                               "communicator)",
                               ticket));
  }
  if (slot.device != ctx.device()) {
    refuse("wait", fmt::format("ticket {} is of a context on {}, not {}", ticket,
                               hyperslab::name_of(slot.device), hyperslab::name_of(ctx.device())));
  }
  slot.ticket = 0;
  --under_way_;
  if (ctx.device() == Device::meta) return 0;

  const Scope scope(ctx.recorder(), kCommunicationComponent);
  const double begin = now_seconds();
  // As open() does: where no one has called an arrival, all members would seem to be late for it.
  if (trail_ && slot.call != Call::barrier) trail_->waits(slot.call, ticket);
  const double end = std::max(do_wait(ctx, ticket), slot.start_seconds);
  if (trail_) trail_->arrived();
  if (slot.call == Call::barrier) return end;  // of arrive()
  traffic_.exposed_seconds += now_seconds() - begin;
  traffic_.seconds += end - slot.start_seconds;
  const bool reduction = slot.call == Call::all_reduce || slot.call == Call::reduce_scatter;
  if (device_ == Device::cuda) return 0;
  if (reduction && report_reductions_) ctx.recorder().add_reduction(slot.start_seconds, end);
  return end;
}

void Communicator::barrier() {
  if (in_group_) refuse("barrier", "called between group_begin and group_end");
  count(Call::barrier, 0);
  const double begin = now_seconds();
  if (trail_) trail_->waits(Call::barrier, next_ticket_ - 1);
  do_barrier();
  if (trail_) trail_->arrived();
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
