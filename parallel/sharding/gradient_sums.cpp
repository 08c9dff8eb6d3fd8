// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/gradient_sums.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "hyperslab/ops/elementwise.hpp"
#include "rooms.hpp"

namespace hyperslab::sharding {
namespace {

/// Parts that lie one after the other, as key and value of a layer do, are one view.
void append(std::vector<View>& views, View part) {
  if (part.numel() == 0) return;
  if (views.empty() ||
      static_cast<std::byte*>(views.back().raw()) + views.back().bytes() != part.raw()) {
    return views.push_back(part);
  }
  View& last = views.back();
  last = {last.raw(), last.dtype(), last.device(), {last.numel() + part.numel()}};
}

}  // namespace

// Setup.

std::vector<View> GradientSums::allocate(const param::ParamGroup& group, const Residence& residence,
                                         Arena& arena, DType dtype) {
  group_ = &group;
  residence_ = residence;
  const bool in_rooms = residence_.written_rooms > 0;
  const Dim size = in_rooms ? group.shard_size() : group.flat_size();
  sums_ = {arena.take(dtype, {size}, in_rooms ? "gradient shards" : "gradients"), in_rooms};
  if (in_rooms) return take_rooms(group, residence_.written_rooms, arena, dtype, "gradient bucket");
  std::vector<View> by_bucket(group.buckets().size());  // NOLINT(misc-const-correctness)
  std::ranges::transform(group.buckets(), by_bucket.begin(), [&](const Bucket& bucket) {
    return sums_.data.slice(bucket.begin, bucket.size());
  });
  return by_bucket;
}

void GradientSums::connect(const mesh::Mesh& mesh) {
  mesh_ = &mesh;
  states_.resize(group_->buckets().size());
  const auto plan = [&](const Bucket& bucket, const layout::Layout& terms,
                        const layout::Layout& sums) {
    layout::Layout from = of_bucket(bucket, terms);
    layout::Layout to = of_bucket(bucket, sums);
    from.format.dtype = to.format.dtype = sums_.data.dtype();
    const std::array shapes = {Shape{bucket.size()}};
    return std::make_unique<layout::Movement>(layout::Movement::plan(mesh, shapes, from, to));
  };
  const bool merges = reduces_every_microbatch() && mesh.size(mesh::Axis::replica) > 1;
  const layout::Layout terms = residence_.gradient.with(mesh::Axis::replica, layout::partial());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Bucket& mine = bucket(i);
    if (mesh.size(merges ? mine.cut_axes() : mine.summed_axes()) > 1) {
      states_[i].sum = plan(mine, residence_.written, merges ? terms : residence_.gradient);
    }
    if (merges) states_[i].merge = plan(mine, terms, residence_.gradient);
  }
  if (mesh_->key_value_group() != nullptr) find_key_values();
  find_norm_views();
  begin_step();
}

void GradientSums::find_key_values() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    for (const param::Param* param : group_->params()) {
      if (param->replicas == 1 || !bucket(i).contains(*param)) continue;
      const Dim begin = param->flat_begin - bucket(i).begin;
      append(states_[i].key_values, group_->gradient(bucket(i)).slice(begin, param->numel()));
    }
  }
}

void GradientSums::find_norm_views() {
  for (const param::ElementRange& range : param::owned_ranges(*group_)) {
    append(norm_views_, sums_.at(range));
  }
}

View GradientSums::summed(const Bucket& bucket) const {
  const View written = group_->gradient(bucket);
  if (!is_flat(residence_.gradient)) return written;
  const param::ElementRange mine = group_->shard(bucket);
  return written.slice(mine.in_flat - bucket.begin, mine.size);
}

/// Those of its sums over all axes; a merge of copies is another movement.
std::vector<layout::Step> GradientSums::steps_of(std::size_t index) const {
  const Bucket& mine = bucket(index);
  const auto all_reduce = [](mesh::AxisSet axes, const View& view) {
    return layout::Step{layout::Step::Kind::all_reduce, axes, view.bytes()};
  };
  std::vector<layout::Step> steps;
  for (const View& part : states_[index].key_values) {
    steps.push_back(all_reduce(mesh::Axis::tensor, part));
  }
  if (states_[index].sum) {
    const auto sums = states_[index].sum->steps();
    steps.insert(steps.end(), sums.begin(), sums.end());
  }
  if (mine.placement.tensor.is_partial()) {
    steps.push_back(all_reduce(mesh::Axis::tensor, summed(mine)));
  }
  if (mine.placement.pipeline.is_partial() && tied() != nullptr) {
    steps.push_back(all_reduce(mesh::Axis::pipeline, summed(mine)));
  }
  return steps;
}

std::vector<NamedMovement> GradientSums::movements(int microbatches) const {
  const bool every = reduces_every_microbatch();
  std::vector<NamedMovement> all;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Bucket& mine = bucket(i);
    NamedMovement sum = {"gradients",
                         mine.first_unit,
                         mine.last_unit,
                         steps_of(i),
                         every ? microbatches : 1,
                         "after backward of its units",
                         mine.first_unit > 0         ? "backward of the units before it"
                         : every && microbatches > 1 ? "the next microbatch"
                                                     : "",
                         mine.is_of_experts()};
    NamedMovement merge = sum;
    if (!sum.steps.empty()) all.push_back(std::move(sum));
    if (!states_[i].merge) continue;
    const auto merged = states_[i].merge->steps();
    merge.what = "gradient shards";
    merge.steps.assign(merged.begin(), merged.end());
    merge.times = 1;
    merge.starts = "after the last microbatch is summed";
    all.push_back(std::move(merge));
  }
  return all;
}

// The walk over the buckets.

bool GradientSums::reduces() const {
  return reduces_every_microbatch() || data().size() > 1 || mesh_->size(mesh::Axis::tensor) > 1 ||
         tied() != nullptr;
}

int GradientSums::next(int microbatch) const {
  return microbatch == microbatch_ ? next_ : static_cast<int>(states_.size()) - 1;
}

bool GradientSums::closes(int unit, int microbatch, bool last) const {
  if (!reduces() || (!last && !reduces_every_microbatch())) return false;
  const int index = next(microbatch);
  return index >= 0 && bucket(static_cast<std::size_t>(index)).first_unit >= unit;
}

void GradientSums::begin_step() {
  for (State& state : states_) state.microbatch = -1;
  microbatch_ = -1;
}

/// Empties and clears the room that the gradients of the unit's buckets go to.
void GradientSums::before_backward(Context& ctx, int unit, int microbatch) {
  if (!reduces_every_microbatch()) return;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const Bucket& mine = bucket(i);
    if (unit < mine.first_unit || unit > mine.last_unit) continue;
    if (states_[i].microbatch == microbatch) continue;
    for (std::size_t other = 0; other < states_.size(); ++other) {
      if (!share_room(bucket(other), mine)) continue;
      if (states_[other].sum && states_[other].sum->in_progress()) note_arrival(ctx);
      keep(ctx, other);
    }
    states_[i].microbatch = microbatch;
    ops::fill(ctx, 0, group_->gradient(mine));  // gaps between tensors hold another bucket's
  }
}

bool GradientSums::share_room(const Bucket& a, const Bucket& b) const {
  return group_->gradient(a).raw() == group_->gradient(b).raw();
}

void GradientSums::ready(Context& ctx, int unit, int microbatch, bool last) {
  while (closes(unit, microbatch, last)) {
    const auto index = static_cast<std::size_t>(next(microbatch));
    next_ = static_cast<int>(index) - 1;
    microbatch_ = microbatch;
    states_[index].microbatch = microbatch;
    states_[index].is_last = last;
    close(ctx, index);
  }
}

void GradientSums::close(Context& ctx, std::size_t index) {
  State& state = states_[index];
  for (const View& part : state.key_values) sum(ctx, *mesh_->key_value_group(), part);
  state.pending = true;
  if (state.sum) state.sum->start(ctx, group_->gradient(bucket(index)), summed(bucket(index)), {});
}

/// Over tensor ranks, which come together in every layer.
void GradientSums::sum(Context& ctx, comm::Communicator& group, View gradients) {
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  group.wait(ctx, group.all_reduce(ctx, gradients, comm::ReduceOp::sum));
}

void GradientSums::progress() {
  const auto in_progress = [](const std::unique_ptr<layout::Movement>& movement) {
    return movement != nullptr && movement->in_progress();
  };
  const bool waits = std::ranges::any_of(states_, [&](const State& state) {
    return in_progress(state.sum) || in_progress(state.merge);
  });
  if (!waits) return;
  for (const mesh::AxisSet axes : {mesh::kShards, mesh::AxisSet(mesh::Axis::replica)}) {
    if (mesh_->size(axes) > 1) mesh_->group(axes).progress();  // experts' groups advance with them
  }
}

// The waits.

std::optional<Scope<Phase>> GradientSums::enter_exposed(Context& ctx) const {
  if (data().size() == 1 && tied() == nullptr) return std::nullopt;
  return std::optional<Scope<Phase>>(std::in_place, ctx.recorder(), Phase::reduce_exposed);
}

template <class Wait>
void GradientSums::await(Arrivals::Point point, Wait wait) {
  const double begin = now_seconds();
  wait();
  arrivals_.waited(point, begin, now_seconds());
}

void GradientSums::complete(Context& ctx, std::size_t index) {
  State& state = states_[index];
  if (!state.pending) return;
  state.pending = false;
  if (state.sum) await(data_point_, [&] { state.sum->wait(ctx); });
  const View sums = summed(bucket(index));
  if (bucket(index).placement.tensor.is_partial()) {
    sum(ctx, mesh_->group(mesh::Axis::tensor), sums);
  }
  if (!reduces_every_microbatch()) sum_ends(ctx, index, sums);
}

/// Once a step: the two ends of a pipeline are at different microbatches until then.
void GradientSums::sum_ends(Context& ctx, std::size_t index, View sums) {
  if (!bucket(index).placement.pipeline.is_partial() || tied() == nullptr) return;
  await(arrivals_.arrive(ctx, *tied()),
        [&] { tied()->wait(ctx, tied()->all_reduce(ctx, sums, comm::ReduceOp::sum)); });
}

void GradientSums::keep(Context& ctx, std::size_t index) {
  if (!states_[index].pending) return;
  {
    const auto exposed = enter_exposed(ctx);
    complete(ctx, index);
  }
  const View found = summed(bucket(index));
  const View kept = sums_.at(group_->shard(bucket(index)));
  if (states_[index].microbatch == 0) {
    ops::cast(ctx, found, kept);
  } else {
    ops::add(ctx, found, kept, kept);
  }
  State& state = states_[index];
  if (state.merge && state.is_last) state.merge->start(ctx, kept, kept, {});
}

void GradientSums::finish(Context& ctx) {
  note_arrival(ctx);
  if (reduces_every_microbatch()) {
    const Scope adds(ctx.recorder(), Phase::backward);  // to the kept sums, as within backward
    for (std::size_t i = states_.size(); i-- > 0;) keep(ctx, i);
    const auto exposed = enter_exposed(ctx);
    for (std::size_t i = states_.size(); i-- > 0;) {
      if (states_[i].merge) await(data_point_, [&] { states_[i].merge->wait(ctx); });
      sum_ends(ctx, i, sums_.at(group_->shard(bucket(i))));
    }
    return;
  }
  const auto exposed = enter_exposed(ctx);  // once for all buckets: a GPU is charged by launches
  for (std::size_t i = states_.size(); i-- > 0;) complete(ctx, i);
}

void GradientSums::report_waits(Context& ctx) {
  ctx.recorder().move(Phase::reduce_exposed, Phase::wait, arrivals_.take_late_seconds(ctx));
}

}  // namespace hyperslab::sharding
