// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/layout/movement.hpp"

#include <fmt/format.h>

#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "planner.hpp"

namespace hyperslab::layout {

using Kind = Step::Kind;

std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::all_gather: return "all_gather";
    case Kind::all_reduce: return "all_reduce";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::broadcast: return "broadcast";
    case Kind::all_to_all: return "all_to_all";
    case Kind::agree_scales: return "agree_scales";
    case Kind::exchange: return "exchange";
    case Kind::slice: return "slice";
    case Kind::pack: return "pack";
    case Kind::unpack: return "unpack";
    case Kind::cast: return "cast";
    case Kind::encode: return "encode";
    case Kind::decode: return "decode";
    case Kind::to_device: return "to_device";
    case Kind::to_host: return "to_host";
    case Kind::copy: return "copy";
  }
  return "?";
}

std::string describe(const Step& step) {
  const std::string over =
      step.communicates() ? fmt::format(" over {}", mesh::describe(step.axes)) : "";
  return fmt::format("{}{}, {} bytes", name_of(step.kind), over, step.bytes);
}

namespace {

bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// True if elements are bytes that only change their place.
bool moves_bytes(const Layout& from, const Layout& to) {
  return from.format.dtype == DType::u8 && to.format.dtype == DType::u8 &&
         from.axes(Placement::Kind::partial).empty();
}

/// The reason why no steps lead from one layout to another; empty if some do.
std::string obstacle(const mesh::Position& at, std::span<const Shape> shapes, const Layout& from,
                     const Layout& to) {
  for (const Layout& layout : {from, to}) {
    if (!is_floating(layout.format.dtype) && !moves_bytes(from, to)) {
      return fmt::format("{} is not f64, f32, bf16 or f16",
                         hyperslab::name_of(layout.format.dtype));
    }
    if (std::string problem = problem_of(at, shapes, layout); !problem.empty()) return problem;
  }
  for (const mesh::Axis axis : mesh::kAxes) {
    if (at.size(axis) == 1 || !to[axis].is_partial() || from[axis].is_partial()) continue;
    return fmt::format(
        "nothing says which terms of a sum the {} ranks of {} would hold; only terms stay terms",
        at.size(axis), mesh::name_of(axis));
  }
  return "";
}

void require_buffer(const char* name, CView view, const Room& room) {
  if (room.elements == 0) return;
  if (view.numel() >= room.elements && view.dtype() == room.dtype) return;
  throw Error(ExitCode::internal,
              fmt::format("{} of a movement has {} elements of {}, expected at least {} of {}",
                          name, view.numel(), hyperslab::name_of(view.dtype()), room.elements,
                          hyperslab::name_of(room.dtype)));
}

comm::Ticket exchange(Context& ctx, const Action& action, View source, View target) {
  const PeerMessages& own = action.messages[static_cast<std::size_t>(action.group->rank())];
  copy_unless_same(ctx, source.slice(own.send_begin, own.send_count),
                   target.slice(own.recv_begin, own.recv_count));
  action.group->group_begin();
  for (const PeerMessages& with : action.messages) {
    if (with.peer == own.peer) continue;
    const View send = source.slice(with.send_begin, with.send_count);
    const View recv = target.slice(with.recv_begin, with.recv_count);
    if (with.send_count > 0) action.group->send(ctx, send, with.peer);
    if (with.recv_count > 0) action.group->recv(ctx, recv, with.peer);
  }
  return action.group->group_end(ctx);
}

/// Does what this rank does alone, and starts what communicates: then the ticket is not 0.
comm::Ticket run(Context& ctx, const Action& action, View source, View target) {
  const auto first = [](View view, Dim elements) { return view.slice(0, elements); };
  const Dim n = action.elements;
  comm::Communicator* group = action.group;
  switch (action.step.kind) {
    case Kind::all_to_all:
    case Kind::exchange: return exchange(ctx, action, source, target);
    default: break;
  }
  if (n == 0) return 0;  // likewise on all members of a group
  switch (action.step.kind) {
    case Kind::all_gather:
      return group->all_gather(ctx, first(source, n / group->size()), first(target, n));
    case Kind::reduce_scatter:
      return group->reduce_scatter(ctx, first(source, n), first(target, n / group->size()));
    case Kind::all_reduce: return group->all_reduce(ctx, first(target, n), comm::ReduceOp::sum);
    case Kind::broadcast: return group->broadcast(ctx, first(target, n), 0);
    case Kind::slice:
    case Kind::pack:
    case Kind::unpack: action.copy.run(ctx, source, target); break;
    case Kind::cast: ops::cast(ctx, first(source, n), first(target, n)); break;
    default: copy_unless_same(ctx, first(source, n), first(target, n)); break;
  }
  return 0;
}

}  // namespace

Movement Movement::plan(const mesh::Mesh& mesh, std::span<const Shape> shapes, const Layout& from,
                        const Layout& to) {
  const std::string problem = obstacle(mesh.position(), shapes, from, to);
  if (!problem.empty()) {
    throw Error(ExitCode::usage, fmt::format(R"(no movement from "{}" to "{}": {})", describe(from),
                                             describe(to), problem));
  }
  Planner planner(mesh, shapes, from, to);
  planner.bring_to_device();  // ops and communicators reach no other memory
  planner.sum();              // in the dtype of `from`, so that a sum is rounded once
  planner.move_values();
  planner.bring_to_host();
  return Movement(planner.finish());
}

Movement::Movement(std::unique_ptr<const MovementPlan> plan) : plan_(std::move(plan)) {}
Movement::Movement(Movement&&) noexcept = default;
Movement& Movement::operator=(Movement&&) noexcept = default;
Movement::~Movement() = default;

std::span<const Step> Movement::steps() const& { return plan_->steps; }
std::size_t Movement::scratch_bytes() const { return plan_->scratch_bytes; }
Dim Movement::from_elements() const { return plan_->rooms.front().elements; }
Dim Movement::to_elements() const { return plan_->rooms.back().elements; }

std::size_t Movement::bytes() const {
  std::size_t sum = 0;
  for (const Step& step : plan_->steps) sum += step.communicates() ? step.bytes : 0;
  return sum;
}

/// The memory of a room, flat.
View Movement::room(std::size_t index) const {
  const Room& room = plan_->rooms[index];
  const bool is_scratch = index > 0 && index + 1 < plan_->rooms.size();
  if (!is_scratch) return index == 0 ? from_ : to_;
  const View bytes =
      scratch_.slice(static_cast<Dim>(room.scratch_offset), static_cast<Dim>(room.bytes()));
  return {bytes.raw(), room.dtype, bytes.device(), {room.elements}};
}

void Movement::start(Context& ctx, View from, View to, View scratch) {
  require(ticket_ == 0 && (next_ == 0 || next_ == plan_->actions.size()),
          "a movement was started twice");
  require_buffer("from", from, plan_->rooms.front());
  require_buffer("to", to, plan_->rooms.back());
  require(scratch.bytes() >= scratch_bytes(), "scratch of a movement is smaller than planned");
  from_ = from.flat();
  to_ = to.flat();
  scratch_ = View(scratch.raw(), DType::u8, scratch.device(), {static_cast<Dim>(scratch.bytes())});
  next_ = 0;
  advance(ctx);
}

void Movement::wait(Context& ctx) {
  while (ticket_ != 0) {
    plan_->actions[next_ - 1].group->wait(ctx, std::exchange(ticket_, 0));
    advance(ctx);
  }
}

/// Up to the next action that must be waited for.
void Movement::advance(Context& ctx) {
  while (ticket_ == 0 && next_ < plan_->actions.size()) {
    const Action& action = plan_->actions[next_++];
    ticket_ = run(ctx, action, room(action.source), room(action.target));
  }
}

}  // namespace hyperslab::layout
