// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/present_values.hpp"

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
  if (sends_fp8 && !store.gathered_fp8().empty()) {
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
  data_ = &mesh.group(mesh::kGradients);
  states_.resize(group_->buckets().size());
  if (!gathers()) return;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (fp8_ && fp8_->covers(i)) continue;
    layout::Layout present = residence_.present;
    present.format.dtype = group_->value().data.dtype();
    const layout::Layout updated =
        present.with(residence_.state.axes(layout::Placement::Kind::flat), layout::flat());
    const std::array shapes = {Shape{group_->buckets()[i].size()}};
    states_[i].gather = layout::Movement::plan(mesh, shapes, updated, present);
  }
}

bool PresentValues::gathers() const {
  return is_flat(residence_.state) && data_ != nullptr && data_->size() > 1;
}

void PresentValues::after_update(Context& ctx, std::size_t index) {
  if (fp8_ && fp8_->covers(index)) return fp8_->start(ctx, *data_, index);
  if (!gathers()) return;
  const param::Bucket& bucket = group_->buckets()[index];
  const View values = group_->value().data.slice(bucket.begin, bucket.size());
  states_[index].gather->start(ctx, group_->value().at(group_->shard(bucket)), values, {});
}

void PresentValues::update_ends(std::size_t index, Event end) {
  states_[index].update = std::move(end);
}

void PresentValues::before(Context& ctx, int unit) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const param::Bucket& bucket = group_->buckets()[i];
    if (unit < bucket.first_unit || unit > bucket.last_unit) continue;
    ctx.stream().wait(std::exchange(states_[i].update, {}));
    await_gather(ctx, i);
  }
}

void PresentValues::await_gather(Context& ctx, std::size_t index) {
  if (fp8_) fp8_->await(ctx, *data_, index);
  if (states_[index].gather) states_[index].gather->wait(ctx);
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
  if (fp8_) fp8_->gather_values(ctx, *data_);
}

void PresentValues::masters_changed(Context& ctx) {
  if (!group_->has_own_values()) {
    require(!fp8_, "FP8 values are gathered of values that are the masters");
    return;
  }
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ops::cast(ctx, group_->master().at(ranges_[i]), group_->value().at(ranges_[i]));
    after_update(ctx, i);
  }
  wait_all(ctx);
}

}  // namespace hyperslab::sharding
