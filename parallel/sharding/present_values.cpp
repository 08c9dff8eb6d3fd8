// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/present_values.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "fp8_gather.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::sharding {

PresentValues::PresentValues() = default;
PresentValues::~PresentValues() = default;

void PresentValues::allocate(param::ParamStore& store, const Residence& residence,
                             Arena* parameters, bool overlaps_updates) {
  group_ = &store.trained();
  residence_ = residence;
  overlaps_updates_ = overlaps_updates;
  find_ranges();
  const bool sends_fp8 = parameters != nullptr && is_flat(residence_.state);
  if (sends_fp8 && store.gathers_fp8()) {
    fp8_ = std::make_unique<Fp8Gather>(store, *parameters);
  }
}

void PresentValues::find_ranges() {
  const bool by_bucket = is_flat(residence_.state) || overlaps_updates_;
  if (!by_bucket && group_->flat_size() > 0) ranges_.push_back(group_->all());
  if (!by_bucket) return;
  for (const param::Bucket& bucket : group_->buckets()) {
    ranges_.push_back(is_flat(residence_.state)
                          ? group_->shard(bucket)
                          : param::ElementRange{bucket.begin, 0, bucket.size()});
  }
}

void PresentValues::connect(const mesh::Mesh& mesh) {
  shards_ = &mesh.group(mesh::kShards);
  states_.resize(group_->buckets().size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const param::Bucket& bucket = group_->buckets()[i];
    states_[i].shares = in_rooms() && bucket.is_sharded();
    if (!(gathers() || in_rooms()) || (fp8_ && fp8_->covers(i))) continue;
    layout::Layout present = residence_.present;
    present.format.dtype = group_->value().data.dtype();
    const layout::Layout updated =
        present.with(residence_.state.axes(layout::Placement::Kind::flat), layout::flat());
    const std::array shapes = {Shape{bucket.size()}};
    states_[i].gather =
        std::make_unique<layout::Movement>(layout::Movement::plan(mesh, shapes, updated, present));
  }
}

bool PresentValues::gathers() const {
  return is_flat(residence_.state) && shards_ != nullptr && shards_->size() > 1;
}

void PresentValues::after_update(Context& ctx, std::size_t index) {
  if (fp8_ && fp8_->covers(index)) return fp8_->start(ctx, *shards_, index);
  if (!states_[index].gather) return;
  if (states_[index].shares) {
    states_[index].present = false;
  } else {
    start_gather(ctx, index);
  }
}

void PresentValues::start_gather(Context& ctx, std::size_t index) {
  const param::Bucket& bucket = group_->buckets()[index];
  states_[index].gather->start(ctx, group_->value().at(group_->shard(bucket)),
                               group_->present(bucket), {});
}

void PresentValues::update_ends(std::size_t index, Event end) {
  states_[index].update = std::move(end);
}

bool PresentValues::is_in(std::size_t bucket, int unit) const {
  const param::Bucket& mine = group_->buckets()[bucket];
  return unit >= mine.first_unit && unit <= mine.last_unit;
}

void PresentValues::make_present(Context& ctx, std::size_t index) {
  State& mine = states_[index];
  ctx.stream().wait(std::exchange(mine.update, {}));
  if (!mine.shares || mine.present) return;
  const View room = group_->present(group_->buckets()[index]);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& other = states_[i];
    if (!other.present || group_->present(group_->buckets()[i]).raw() != room.raw()) continue;
    other.gather->wait(ctx);  // its gather may be in progress
    other.present = false;
  }
  start_gather(ctx, index);
  mine.present = true;
}

void PresentValues::before(Context& ctx, int unit) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!is_in(i, unit)) continue;
    make_present(ctx, i);
    await_gather(ctx, i);
  }
}

void PresentValues::before(Context& ctx, int unit, Order order) {
  before(ctx, unit);
  if (!in_rooms()) return;
  if (const auto next = next_shared(unit, order)) make_present(ctx, *next);
}

/// Buckets that share rooms take turns in them, so that neighbours are in different ones.
std::optional<std::size_t> PresentValues::next_shared(int unit, Order order) const {
  const auto is_next = [&](std::size_t i) {
    const param::Bucket& bucket = group_->buckets()[i];
    return states_[i].shares &&
           (order == Order::ascending ? bucket.first_unit > unit : bucket.last_unit < unit);
  };
  for (std::size_t step = 0; step < states_.size(); ++step) {
    const std::size_t i = order == Order::ascending ? step : states_.size() - 1 - step;
    if (is_next(i)) return i;
  }
  return std::nullopt;
}

void PresentValues::await_gather(Context& ctx, std::size_t index) {
  if (fp8_) fp8_->await(ctx, *shards_, index);
  if (states_[index].gather) states_[index].gather->wait(ctx);
}

std::vector<NamedMovement> PresentValues::movements(int microbatches) const {
  const auto shared = std::ranges::count_if(states_, &State::shares);
  std::vector<NamedMovement> all;
  int turn = 0;  // among buckets that share rooms
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const param::Bucket& bucket = group_->buckets()[i];
    NamedMovement& moved = all.emplace_back(NamedMovement{"values",
                                                          bucket.first_unit,
                                                          bucket.last_unit,
                                                          {},
                                                          1,
                                                          "after its update",
                                                          "forward of the units before it"});
    if (fp8_ && fp8_->covers(i)) moved.steps = fp8_->steps(i);
    if (states_[i].gather) {
      moved.steps.assign(states_[i].gather->steps().begin(), states_[i].gather->steps().end());
    }
    if (moved.steps.empty()) all.pop_back();
    if (!states_[i].shares) continue;
    // A pass does not gather the two buckets that the pass before used last.
    moved.times = 1 + (turn >= 2 ? microbatches - 1 : 0) + (turn < shared - 2 ? microbatches : 0);
    moved.starts = "one bucket ahead of forward and backward";
    moved.behind = "the bucket before it in the pass";
    ++turn;
  }
  return all;
}

void PresentValues::wait_for_updates(Context& ctx) {
  for (State& state : states_) ctx.stream().wait(std::exchange(state.update, {}));
}

void PresentValues::wait_all(Context& ctx) {
  wait_for_updates(ctx);
  for (std::size_t i = 0; i < states_.size(); ++i) await_gather(ctx, i);
}

void PresentValues::complete(Context& ctx) {
  wait_all(ctx);
  if (fp8_) fp8_->gather_values(ctx, *shards_);
}

void PresentValues::masters_changed(Context& ctx) {
  const bool casts = group_->has_own_values();
  require(casts || !fp8_, "FP8 values are gathered of values that are the masters");
  if (!casts && !in_rooms()) return;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (casts) ops::cast(ctx, group_->master().at(ranges_[i]), group_->value().at(ranges_[i]));
    after_update(ctx, i);
  }
  wait_all(ctx);
}

}  // namespace hyperslab::sharding
