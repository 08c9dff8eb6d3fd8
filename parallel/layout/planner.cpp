// SPDX-License-Identifier: Apache-2.0
#include "planner.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::layout {

using mesh::Axis;
using mesh::AxisSet;
using mesh::kAxes;
using mesh::Position;
using Kind = Step::Kind;

namespace {

/// Axes for which test(axis) holds.
template <class Test>
AxisSet axes_where(Test test) {
  AxisSet axes;
  for (const Axis axis : kAxes) axes = test(axis) ? axes | axis : axes;
  return axes;
}

/// An axis of one rank makes no difference, so that its placement may be this one.
Layout without_single_ranks(const Layout& layout, const Position& at) {
  return layout.with(axes_where([&](Axis axis) { return at.size(axis) == 1; }), replicate());
}

}  // namespace

Planner::Planner(const mesh::Mesh& mesh, std::span<const Shape> shapes, const Layout& from,
                 const Layout& to)
    : mesh_(mesh),
      at_(mesh.position()),
      shapes_(shapes),
      now_(without_single_ranks(from, at_)),
      to_(without_single_ranks(to, at_)),
      changes_home_(now_ != to_),
      plan_(std::make_unique<MovementPlan>()) {
  plan_->rooms.push_back({now_.format.dtype, contents(now_).size});
}

Contents Planner::contents(const Position& at, const Layout& layout) const {
  return contents_of(at, shapes_, layout);
}

/// The buffers of the members of a group, one after the other.
Contents Planner::joined(AxisSet axes, const Layout& layout) const {
  Contents all;
  for (int rank = 0; rank < at_.size(axes); ++rank) {
    all.append(contents(at_.moved(axes, rank), layout));
  }
  return all;
}

// The choice of actions and their order.

/// True if under `finer`, which cuts along more axes, each rank holds a part of what it holds now.
/// A range of a range has other elements, and so has a part of which a slower axis takes a part.
bool Planner::can_cut(const Layout& finer) const {
  if (finer == now_) return true;
  if (!now_.axes(Placement::Kind::flat).empty()) return false;
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if (finer[kAxes[i]] == now_[kAxes[i]] || !finer[kAxes[i]].is_shard()) continue;
    const auto faster = std::span(now_.over).subspan(i + 1);
    if (std::ranges::find(faster, finer[kAxes[i]]) != faster.end()) return false;
  }
  return problem_of(at_, shapes_, finer).empty();
}

/// Axes along which a rank may need elements of others: they cut or own the tensors now, and the
/// cut becomes another. A shard stays as it is if no slower axis begins or ends to cut its
/// dimension, a range if no axis begins or ends to cut.
AxisSet Planner::axes_of_messages() const {
  const auto changes = [&](Axis axis, auto cuts) {
    return now_[axis] != to_[axis] && (cuts(now_[axis]) || cuts(to_[axis]));
  };
  return axes_where([&](Axis axis) {
    const Placement& mine = now_[axis];
    if (!mine.cuts() && !mine.is_owner()) return false;
    if (mine != to_[axis]) return true;
    return std::ranges::any_of(kAxes, [&](Axis other) {
      if (mine.is_flat()) return changes(other, [](const Placement& p) { return p.cuts(); });
      return other < axis && changes(other, [&](const Placement& p) { return p == mine; });
    });
  });
}

/// True if now_ and to_ differ along `axes` alone, on which test(placement now) holds, and there
/// every rank is to hold everything.
template <class Test>
bool Planner::changes_only(AxisSet axes, Test test) const {
  return std::ranges::all_of(kAxes, [&](Axis axis) {
    if (!axes.contains(axis)) return now_[axis] == to_[axis];
    return test(now_[axis]) && to_[axis] == replicate();
  });
}

void Planner::sum() {
  const AxisSet summed =
      axes_where([&](Axis axis) { return now_[axis].is_partial() && !to_[axis].is_partial(); });
  if (summed.empty()) return;
  // The cut that a rank is to have anyway makes the sum smaller.
  Layout cut = now_;
  for (const Axis axis : kAxes) {
    if (to_[axis].cuts() && (summed.contains(axis) || now_[axis] == replicate())) {
      cut = cut.with(axis, to_[axis]);
    }
  }
  if (!can_cut(cut)) cut = now_;
  const AxisSet scattered =
      axes_where([&](Axis axis) { return summed.contains(axis) && cut[axis].cuts(); });
  if (!scattered.empty()) {
    const Contents full = joined(scattered, cut);
    pack(full);
    communicate(Kind::reduce_scatter, scattered, full.size, contents(cut).size);
  } else if (cut != now_) {
    rearrange(Kind::slice, contents(now_), contents(cut));
  }
  now_ = cut;
  // After the scatter, each rank's part is all that is left to sum over the other axes.
  const AxisSet rest =
      axes_where([&](Axis axis) { return summed.contains(axis) && !scattered.contains(axis); });
  if (!rest.empty()) communicate_in_place(Kind::all_reduce, rest);
  now_ = now_.with(rest, replicate());
}

void Planner::move_values() {
  const AxisSet axes = axes_of_messages();
  const bool narrows = size_of(to_.format.dtype) <= size_of(now_.format.dtype);
  if (!axes.empty() && narrows) cast();
  if (axes.empty()) {
    if (now_.over != to_.over) rearrange(Kind::slice, contents(now_), contents(to_));
  } else if (changes_only(axes, [](const Placement& p) { return p.cuts(); })) {
    gather(axes);
  } else if (changes_only(axes, [](const Placement& p) { return p.is_owner(); })) {
    broadcast(axes);
  } else {
    exchange(axes);
  }
  now_.over = to_.over;
  cast();
}

void Planner::gather(AxisSet axes) {
  const Contents all = joined(axes, now_);
  communicate(Kind::all_gather, axes, all.size, all.size);
  unpack(all);
}

void Planner::broadcast(AxisSet axes) {
  // On ranks that own nothing `from` has no room for the elements.
  if (plan_->rooms.size() == 1) append(Kind::copy, room().elements);
  room().elements = contents(to_).size;
  communicate_in_place(Kind::broadcast, axes);
}

/// Each rank sends every other one the elements that it is to have.
void Planner::exchange(AxisSet axes) {
  Contents sent;
  Contents received;
  std::vector<PeerMessages> messages;
  Dim elements = 0;  // in messages to and from others
  const Contents have = contents(now_);
  const Contents need = contents(to_);
  for (int peer = 0; peer < at_.size(axes); ++peer) {
    const Position other = at_.moved(axes, peer);
    const Contents out = common(have, contents(other, to_));
    const Contents in = common(contents(other, now_), need);
    messages.push_back({peer, sent.size, out.size, received.size, in.size});
    if (peer != at_.at(axes)) elements += out.size + in.size;
    sent.append(out);
    received.append(in);
  }
  require(received.size == need.elements(), "a movement does not find all elements");
  pack(sent);
  const bool shards = std::ranges::all_of(kAxes, [&](Axis axis) {
    return !axes.contains(axis) || (now_[axis].is_shard() && to_[axis].is_shard());
  });
  Action& action =
      communicate(shards ? Kind::all_to_all : Kind::exchange, axes, elements, received.size);
  action.messages = std::move(messages);
  unpack(received);
}

void Planner::bring_to_device() {
  if (now_.home == Home::host && changes_home_) append(Kind::to_device, room().elements);
}

void Planner::bring_to_host() {
  if (to_.home == Home::host && changes_home_) append(Kind::to_host, room().elements);
}

// Actions as the plan keeps them.

/// An action that takes `elements` from the room to a new one of as many.
Action& Planner::append(Kind kind, Dim elements) {
  plan_->rooms.push_back({now_.format.dtype, elements});
  const std::size_t target = plan_->rooms.size() - 1;
  return plan_->actions.emplace_back(Action{.step = {.kind = kind, .bytes = room().bytes()},
                                            .source = target - 1,
                                            .target = target,
                                            .elements = elements});
}

/// A communicator's call that counts `elements` and leaves `received` in a new room.
Action& Planner::communicate(Kind kind, AxisSet axes, Dim elements, Dim received) {
  Action& action = append(kind, elements);
  action.step.axes = axes;
  action.group = &mesh_.group(axes);
  room().elements = received;
  return action;
}

Action& Planner::communicate_in_place(Kind kind, AxisSet axes) {
  return plan_->actions.emplace_back(
      Action{.step = {.kind = kind, .axes = axes, .bytes = room().bytes()},
             .source = plan_->rooms.size() - 1,
             .target = plan_->rooms.size() - 1,
             .elements = room().elements,
             .group = &mesh_.group(axes)});
}

void Planner::rearrange(Kind kind, const Contents& from, const Contents& to) {
  append(kind, to.size).copy = LocalCopy(from, to);
}

/// Before a communicator: if all elements lie right, it reads the room itself, with its padding.
void Planner::pack(const Contents& to) {
  const Contents mine = contents(now_);
  if (!LocalCopy(mine, to).is_in_place()) return rearrange(Kind::pack, mine, to);
  if (to.size <= room().elements) return;
  // Only a reduce_scatter reads more than the elements: the padding of ranges. Before it comes at
  // most a copy from the host, which brings the padding along.
  for (Room& room : plan_->rooms) room.elements = to.size;
  for (Action& action : plan_->actions) {
    action.elements = to.size;
    action.step.bytes = room().bytes();
  }
}

/// After a communicator: if all elements lie right, the room is read as it is, unless there is
/// padding that the communicator has not written.
void Planner::unpack(const Contents& from) {
  const Contents mine = contents(to_);
  const LocalCopy copy(from, mine);
  if (!copy.is_in_place() || copy.has_gaps()) rearrange(Kind::unpack, from, mine);
}

void Planner::cast() {
  if (now_.format == to_.format) return;
  now_.format = to_.format;
  append(Kind::cast, room().elements);
}

std::unique_ptr<const MovementPlan> Planner::finish() {
  MovementPlan& plan = *plan_;
  if (plan.rooms.size() == 1) append(Kind::copy, room().elements);
  // An action reads one room and writes the next, so that two places in turn are enough.
  constexpr std::size_t kAlignment = Arena::kAlignment;
  std::size_t even = 0;
  std::size_t odd = 0;
  for (std::size_t i = 1; i + 1 < plan.rooms.size(); ++i) {
    std::size_t& bytes = i % 2 == 0 ? even : odd;
    bytes = std::max(bytes, round_up(plan.rooms[i].bytes(), kAlignment));
  }
  for (std::size_t i = 2; i + 1 < plan.rooms.size(); i += 2) plan.rooms[i].scratch_offset = odd;
  plan.scratch_bytes = odd + even;
  for (const Action& action : plan.actions) plan.steps.push_back(action.step);
  return std::move(plan_);
}

}  // namespace hyperslab::layout
