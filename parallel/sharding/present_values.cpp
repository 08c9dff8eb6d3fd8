// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/present_values.hpp"

#include <algorithm>
#include <utility>

#include "fp8_gather.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "value_gather.hpp"

namespace hyperslab::sharding {

PresentValues::PresentValues() = default;
PresentValues::~PresentValues() = default;

void PresentValues::allocate(param::ParamStore& store, const Residence& residence,
                             Arena* parameters, bool overlaps_updates) {
  group_ = &store.trained();
  residence_ = residence;
  overlaps_updates_ = overlaps_updates;
  find_ranges();
  find_gathers(store, parameters);
}

/// FP8 values are gathered in training alone.
void PresentValues::find_gathers(param::ParamStore& store, Arena* parameters) {
  const std::vector<param::Bucket>& buckets = group_->buckets();
  std::vector<std::vector<param::KeptFp8*>> matrices(buckets.size());
  for (param::KeptFp8& kept : store.kept_fp8()) {
    if (!is_flat(residence_.state) || !kept.gathered) continue;
    const param::Bucket& home = group_->bucket_of(*kept.matrix.members().front());
    matrices[static_cast<std::size_t>(&home - buckets.data())].push_back(&kept);
  }
  layout::Layout present = residence_.present;
  if (group_->value()) present.format.dtype = group_->value().data.dtype();
  const layout::Layout updated =
      present.with(residence_.state.axes(layout::Placement::Kind::flat), layout::flat());
  states_.resize(buckets.size());
  Fp8Gather* before = nullptr;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const param::Bucket& bucket = buckets[i];
    states_[i].shares = in_rooms() && bucket.is_sharded();
    if (parameters != nullptr && !matrices[i].empty()) {
      auto gather = std::make_unique<Fp8Gather>(*group_, bucket, before, matrices[i], *parameters);
      before = gather.get();
      states_[i].gather = std::move(gather);
    } else if (gathers() || in_rooms()) {
      states_[i].gather = std::make_unique<MovedValues>(
          updated, present, group_->value().at(group_->shard(bucket)), group_->present(bucket));
    }
  }
}

void PresentValues::find_ranges() {
  const bool in_shards = is_flat(residence_.state);
  if (!in_shards && !overlaps_updates_) {
    if (group_->flat_size() > 0) ranges_ = {group_->all()};
    return;
  }
  for (const param::Bucket& bucket : group_->buckets()) {
    const param::ElementRange all = {bucket.begin, 0, bucket.size()};
    ranges_.push_back(in_shards ? group_->shard(bucket) : all);
  }
}

void PresentValues::connect(const mesh::Mesh& mesh) {
  for (State& state : states_) {
    if (state.gather) state.gather->connect(mesh);
  }
}

bool PresentValues::gathers() const {
  return is_flat(residence_.state) && group_->position().size(mesh::kShards) > 1;
}

void PresentValues::after_update(Context& ctx, std::size_t index) {
  State& mine = states_[index];
  if (mine.shares) {
    mine.present = false;
  } else if (mine.gather) {
    mine.gather->start(ctx);
  }
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
  mine.gather->start(ctx);
  mine.present = true;
}

void PresentValues::before(Context& ctx, int unit) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!is_in(i, unit)) continue;
    make_present(ctx, i);
    if (states_[i].gather) states_[i].gather->wait(ctx);
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

std::vector<NamedMovement> PresentValues::movements(int microbatches) const {
  const auto shared = std::ranges::count_if(states_, &State::shares);
  std::vector<NamedMovement> all;
  int turn = 0;  // among buckets that share rooms
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const param::Bucket& bucket = group_->buckets()[i];
    if (!states_[i].gather || states_[i].gather->steps().empty()) continue;
    const auto steps = states_[i].gather->steps();
    NamedMovement& moved = all.emplace_back(NamedMovement{"values",
                                                          bucket.first_unit,
                                                          bucket.last_unit,
                                                          {steps.begin(), steps.end()},
                                                          1,
                                                          "after its update",
                                                          "forward of the units before it"});
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
  for (State& state : states_) {
    if (state.gather) state.gather->wait(ctx);
  }
}

void PresentValues::complete(Context& ctx) {
  wait_all(ctx);
  for (State& state : states_) {
    if (state.gather) state.gather->complete(ctx);
  }
}

void PresentValues::masters_changed(Context& ctx) {
  const bool casts = group_->has_own_values();
  if (!casts && !in_rooms()) return;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (casts) ops::cast(ctx, group_->master().at(ranges_[i]), group_->value().at(ranges_[i]));
    after_update(ctx, i);
  }
  wait_all(ctx);
}

}  // namespace hyperslab::sharding
