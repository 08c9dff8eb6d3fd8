// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/present_values.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "fp8_gather.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "rooms.hpp"
#include "value_gather.hpp"

namespace hyperslab::sharding {

void PresentValues::allocate(param::ParamStore& store, const Residence& residence,
                             Arena* parameters, bool overlaps_updates) {
  group_ = &store.trained();
  residence_ = residence;
  overlaps_updates_ = overlaps_updates;
  find_ranges();
  find_gathers(store, parameters);
}

std::vector<std::vector<param::KeptFp8*>> PresentValues::find_fp8(param::ParamStore& store) const {
  const std::vector<param::Bucket>& buckets = group_->buckets();
  std::vector<std::vector<param::KeptFp8*>> matrices(buckets.size());
  for (param::KeptFp8& kept : store.kept_fp8()) {
    if (!is_flat(residence_.state) || !kept.gathered) continue;
    const param::Bucket& home = group_->bucket_of(*kept.matrix.members().front());
    matrices[static_cast<std::size_t>(&home - buckets.data())].push_back(&kept);
  }
  return matrices;
}

/// By bucket, of elements whose FP8 values are in rooms.
std::vector<View> PresentValues::fp8_rooms(std::span<const std::vector<param::KeptFp8*>> matrices,
                                           Arena* parameters) const {
  if (parameters == nullptr || !in_rooms()) return std::vector<View>(matrices.size());
  std::vector<Dim> sizes;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    sizes.push_back(matrices[i].empty() ? 0 : group_->buckets()[i].size());
  }
  return take_rooms(*group_, sizes, residence_.present_rooms, *parameters, DType::u8,
                    "present FP8 values");
}

/// FP8 values are gathered in training alone.
void PresentValues::find_gathers(param::ParamStore& store, Arena* parameters) {
  const std::vector<param::Bucket>& buckets = group_->buckets();
  const auto matrices = find_fp8(store);
  layout::Layout present = residence_.present;
  if (group_->value()) present.format.dtype = group_->value().data.dtype();
  const layout::Layout updated =
      present.with(residence_.state.axes(layout::Placement::Kind::flat), layout::flat());
  const auto moves = [&](const param::Bucket& bucket) {
    return (gathers() || in_rooms()) && !group_->is_of_own_experts(bucket);
  };
  const std::vector<View> rooms = fp8_rooms(matrices, parameters);
  std::array<Fp8Gather*, 2> before = {};  // experts' gathers are a chain of their own
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const param::Bucket& bucket = buckets[i];
    PresentBuckets::Bucket added = {
        .first_unit = bucket.first_unit,
        .last_unit = bucket.last_unit,
        .room = rooms[i] ? rooms[i].raw() : group_->present(bucket).raw(),
        .of_experts = bucket.is_of_experts(),
        .shares = in_rooms() && bucket.is_sharded() && (rooms[i] || moves(bucket)),
        .gather = {}};
    if (parameters != nullptr && !matrices[i].empty()) {
      Fp8Gather*& last = before[bucket.is_of_experts() ? 1 : 0];
      auto gather =
          std::make_unique<Fp8Gather>(*group_, bucket, last, matrices[i], rooms[i], *parameters);
      last = gather.get();
      added.gather = std::move(gather);
    } else if (moves(bucket)) {
      added.gather = std::make_unique<MovedValues>(
          of_bucket(bucket, updated), of_bucket(bucket, present),
          group_->value().at(group_->shard(bucket)), group_->present(bucket));
    }
    buckets_.add(std::move(added));
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

bool PresentValues::gathers() const {
  return is_flat(residence_.state) && group_->position().size(mesh::kShards) > 1;
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
