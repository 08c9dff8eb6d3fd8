// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/param/store.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::param {
namespace {

constexpr Dim kFusedAlignment = 32;      // elements: 64 bytes in the narrowest dtype
constexpr Dim kBucketGranule = 128 / 4;  // elements of f32 for each rank

// Groups: parameters that are trained, frozen ones that are stored as values, and buffers.
constexpr std::size_t kTrained = 0;
constexpr std::size_t kFrozen = 1;
constexpr std::size_t kBuffers = 2;
constexpr std::size_t kGroups = 3;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

bool equal_kinds(const Placements& a, const Placements& b) {
  return a.tensor.kind == b.tensor.kind && a.pipeline.kind == b.pipeline.kind &&
         a.expert.kind == b.expert.kind;
}

}  // namespace

std::string_view name_of(Role role) {
  constexpr std::array<std::string_view, kRoles> kNames = {"matrix", "embedding", "head",   "norm",
                                                           "bias",   "router",    "adapter"};
  return kNames.at(static_cast<std::size_t>(role));
}

Dim Param::stored_numel() const {
  return part.count[0] == 0 ? stored_rows * (part.count.rank() == 2 ? part.count[1] : 1)
                            : part.numel() / part.count[0] * stored_rows;
}

Shape FusedParam::shape() const {
  Dim rows = 0;
  for (const Param* member : members_) rows += member->stored_rows;
  const Shape& first = members_.front()->part.count;
  return first.rank() == 1 ? Shape{rows} : Shape{rows, first[1]};
}

View FusedParam::joined(const View& first) const {
  return first ? View(first.raw(), first.dtype(), first.device(), shape()) : View();
}

CView FusedParam::value() const {
  return quantized_ != nullptr ? CView(quantized_->dequantized)
                               : CView(joined(members_.front()->value));
}
View FusedParam::gradient() const { return joined(members_.front()->gradient); }

ElementRange ParamGroup::shard(const Bucket& bucket) const {
  const Dim size = bucket.size() / position_.size(bucket.cut_axes());
  return {bucket.begin + position_.at(bucket.cut_axes()) * size, bucket.shards_begin, size};
}

const Bucket& ParamGroup::bucket_of(const Param& param) const {
  return *std::ranges::find_if(buckets_, [&](const Bucket& b) { return b.contains(param); });
}

View ParamGroup::gradient(const Bucket& bucket) const {
  if (memory_.gradients.empty()) return {};
  return memory_.gradients.at(static_cast<std::size_t>(&bucket - buckets_.data()));
}

View ParamGroup::present(const Bucket& bucket) const {
  if (memory_.present.empty()) return value().data.slice(bucket.begin, bucket.size());
  return memory_.present.at(static_cast<std::size_t>(&bucket - buckets_.data()));
}

void ParamGroup::bind(Memory memory) {
  memory_ = std::move(memory);
  for (Param* param : params_) {
    const auto view_in = [&](View flat, Dim begin) {
      return flat.slice(begin, param->numel()).reshaped(param->part.count);
    };
    if (master() && !master().sharded) param->master = view_in(master().data, param->flat_begin);
    const Bucket& bucket = bucket_of(*param);
    if (const View home = present(bucket)) {
      param->value = view_in(home, param->flat_begin - bucket.begin);
    }
    if (const View home = gradient(bucket)) {
      param->gradient = view_in(home, param->flat_begin - bucket.begin);
    }
  }
}

ParamStore::ParamStore(const mesh::Position& position, const std::function<bool(Role)>& trains,
                       const MatrixStorage& storage, const Parametrization& parametrization)
    : position_(position),
      trains_(trains),
      storage_(storage),
      parametrization_(parametrization),
      groups_(kGroups, ParamGroup(false)) {
  groups_[kTrained] = ParamGroup(true);
  for (ParamGroup& group : groups_) group.position_ = position;
}

/// On one expert rank experts are as all else.
Placements ParamStore::placement_of(const ParamSpec& spec) const {
  Placements placement = spec.placement;
  if (position_.size(mesh::Axis::expert) == 1) placement.expert = layout::replicate();
  return placement;
}

Param& ParamStore::add(const ParamSpec& spec) {
  Param& param = params_.emplace_back();
  param.name = spec.name;
  param.global_shape = spec.shape;
  param.part = spec.part.offset.rank() == 0 ? Hyperslab::whole(spec.shape) : spec.part;
  param.stored_rows = spec.stored_rows > 0 ? spec.stored_rows : param.part.count[0];
  param.role = spec.role;
  param.init = spec.init;
  param.init_std = static_cast<float>(spec.init_std * parametrization_.init_factor(spec.role));
  param.rate = static_cast<float>(parametrization_.rate_factor(spec.role));
  param.muon_rate = static_cast<float>(parametrization_.muon_rate_factor(spec.role));
  param.placement = placement_of(spec);
  param.replicas = spec.replicas;
  param.replica = spec.replica;
  param.unit = unit_;
  param.owned = spec.replica == 0 &&
                (spec.placement.tensor.is_shard() || position_.is_first(mesh::Axis::tensor)) &&
                (!spec.placement.pipeline.is_partial() || position_.is_first(mesh::Axis::pipeline));
  return param;
}

FusedParam ParamStore::declare(std::span<const ParamSpec> specs) {
  require(unit_ >= 0, "a parameter was declared before the first unit");
  const ParamSpec& first = specs.front();
  const bool trained = !first.is_buffer && trains_(first.role);
  const bool quantized =
      !trained && !first.is_buffer && !first.keeps_values && storage_.freezes(first.role);
  const bool rounded = first.role == Role::matrix && trained && storage_.trained;
  const std::size_t group = first.is_buffer ? kBuffers : trained ? kTrained : kFrozen;
  if (!quantized) {
    fused_.push_back({params_.size(), specs.size(), unit_, unit_, group, placement_of(first)});
  }
  std::vector<Param*> members;
  for (const ParamSpec& spec : specs) {
    require(equal_kinds(spec.placement, first.placement) && spec.role == first.role,
            "fused parameters have one role and placement");
    members.push_back(&add(spec));
    if (!quantized) groups_[group].params_.push_back(members.back());
  }
  if (!quantized && !rounded) return FusedParam(std::move(members));
  const QuantizedWeight* weight = add_quantized(members, trained);
  return FusedParam(std::move(members), weight);
}

const QuantizedWeight* ParamStore::add_quantized(const std::vector<Param*>& members, bool trained) {
  const std::optional<QuantizationSpec>& spec = trained ? storage_.trained : storage_.frozen;
  if (!spec) throw Error(ExitCode::internal, "a matrix is dequantized whose storage is not known");
  QuantizedWeight& quantized = quantized_weights_.emplace_back();
  quantized.members = members;
  quantized.unit = unit_;
  quantized.frozen = !trained;
  quantized.spec = *spec;
  Dim rows = 0;
  for (const Param* member : members) rows += member->stored_rows;
  const Param& first = *members.front();
  quantized.shape = {rows, first.part.count[1]};
  // Tables and heads take their input unrounded: only blocks' matrices may round it.
  if (first.role != Role::matrix) quantized.spec.activations = ops::ActivationFormat::none;
  const bool cuts_rows = first.part.count[1] != first.global_shape[1];
  if (cuts_rows && quantized.spec.format == ops::WeightFormat::int8) {
    require(storage_.row_ranks != nullptr, "who holds the other parts of rows is not known");
    quantized.row_ranks = storage_.row_ranks;
  }
  return &quantized;
}

const KeptFp8* ParamStore::keep_fp8(const FusedParam& matrix, std::size_t bytes, bool gathered) {
  if (gathered && !trains_(matrix.members().front()->role)) return nullptr;
  return &kept_fp8_.emplace_back(matrix, static_cast<Dim>(bytes), gathered);
}

void ParamStore::share(const FusedParam& shared) {
  for (Fused& fused : fused_) {
    if (&params_[fused.first] == shared.members().front()) fused.last_unit = unit_;
  }
}

Dim ParamStore::size_of(const Fused& fused) const {
  Dim size = 0;
  for (std::size_t i = 0; i < fused.count; ++i) size += params_[fused.first + i].stored_numel();
  return round_up(size, kFusedAlignment);
}

/// A bucket for each kind of placement that is not a shard of the tensor or pipeline axis.
std::vector<Bucket> ParamStore::shared_buckets(std::size_t group) const {
  constexpr std::array kPlacements = {
      Placements{.pipeline = layout::partial()}, Placements{.tensor = layout::partial()},
      Placements{.tensor = layout::partial(), .expert = layout::shard(0)},
      Placements{.tensor = layout::replicate()},
      Placements{.tensor = layout::replicate(), .expert = layout::shard(0)}};
  std::vector<Bucket> buckets;
  for (const Placements& placement : kPlacements) {
    Bucket bucket = {unit_ + 1, -1, 0, 0, placement, false};
    for (const Fused& fused : fused_) {
      if (fused.group != group || !equal_kinds(fused.placement, placement)) continue;
      bucket.first_unit = std::min(bucket.first_unit, fused.unit);
      bucket.last_unit = std::max(bucket.last_unit, fused.last_unit);
      bucket.end += size_of(fused);
    }
    if (bucket.end > 0) buckets.push_back(bucket);
  }
  return buckets;
}

bool ParamStore::has_fp8(int unit, const Placements& placement) const {
  return std::ranges::any_of(kept_fp8_, [&](const KeptFp8& kept) {
    const Param& first = *kept.matrix.members().front();
    return kept.gathered && first.unit == unit && equal_kinds(first.placement, placement);
  });
}

/// Buckets close in the order in which backward finishes units: last unit first. One whose matrices
/// are gathered as FP8 values has no large tables besides.
std::vector<Bucket> ParamStore::unit_buckets(std::size_t group, const Placements& placement,
                                             std::size_t bucket_bytes) const {
  std::vector<Dim> unit_size(index(unit_ + 1), 0);
  for (const Fused& fused : fused_) {
    if (fused.group == group && equal_kinds(fused.placement, placement)) {
      unit_size[index(fused.unit)] += size_of(fused);
    }
  }
  std::vector<Bucket> buckets;
  Dim open_size = 0;
  int first_filled = unit_;
  int last = unit_;
  for (int unit = unit_; unit >= 0; --unit) {
    const Dim size = unit_size[index(unit)];
    open_size += size;
    if (size > 0) first_filled = unit;
    if (open_size == size && placement.expert.is_shard()) last = unit;  // the first filled one
    const bool full =
        open_size > 0 && (static_cast<std::size_t>(open_size) * 4 >= bucket_bytes ||
                          (unit > 0 && has_fp8(unit, placement) != has_fp8(unit - 1, placement)));
    if (open_size == 0 || (!full && unit > 0)) continue;
    const bool gathers_fp8 = group == kTrained && has_fp8(unit, placement);
    buckets.push_back({first_filled, last, 0, open_size, placement, gathers_fp8});
    open_size = 0;
    last = unit - 1;
  }
  std::ranges::reverse(buckets);
  return buckets;
}

void ParamStore::form_buckets(std::size_t group, std::size_t bucket_bytes) {
  ParamGroup& mine = groups_[group];
  mine.buckets_ = shared_buckets(group);
  std::vector<Bucket> by_unit = unit_buckets(group, {}, bucket_bytes);
  const Placements experts = {.expert = layout::shard(0)};
  const std::vector<Bucket> of_experts = unit_buckets(group, experts, bucket_bytes);
  by_unit.insert(by_unit.end(), of_experts.begin(), of_experts.end());
  std::ranges::stable_sort(by_unit, {}, &Bucket::first_unit);  // the last one closes first
  mine.buckets_.insert(mine.buckets_.end(), by_unit.begin(), by_unit.end());
  mine.flat_size_ = mine.shard_size_ = 0;
  for (Bucket& bucket : mine.buckets_) {
    const int ranks = position_.size(bucket.cut_axes());
    const Dim size = round_up(bucket.end, ranks * kBucketGranule);
    bucket.begin = mine.flat_size_;
    bucket.end = mine.flat_size_ += size;
    bucket.shards_begin = mine.shard_size_;
    mine.shard_size_ += size / ranks;
  }
}

void ParamStore::lay_out(std::size_t bucket_bytes) {
  std::vector<std::vector<Dim>> next(groups_.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    form_buckets(group, bucket_bytes);
    for (const Bucket& bucket : groups_[group].buckets_) next[group].push_back(bucket.begin);
  }
  for (const Fused& fused : fused_) {
    const std::vector<Bucket>& buckets = groups_[fused.group].buckets_;
    const auto home = std::ranges::find_if(buckets, [&](const Bucket& bucket) {
      return equal_kinds(bucket.placement, fused.placement) && fused.unit >= bucket.first_unit &&
             fused.unit <= bucket.last_unit;
    });
    Dim& begin = next[fused.group][static_cast<std::size_t>(home - buckets.begin())];
    for (std::size_t i = 0; i < fused.count; ++i) {
      params_[fused.first + i].flat_begin = begin;
      begin += params_[fused.first + i].stored_numel();
    }
    begin = round_up(begin, kFusedAlignment);
  }
}

std::vector<ElementRange> owned_ranges(const ParamGroup& group) {
  std::vector<ElementRange> out;
  if (!group.position().is_first(mesh::Axis::replica)) return out;
  for (const Bucket& bucket : group.buckets()) {
    std::vector<const Param*> members;
    std::ranges::copy_if(group.params(), std::back_inserter(members),
                         [&](const Param* param) { return bucket.contains(*param); });
    if (std::ranges::none_of(members, &Param::owned)) continue;
    const ElementRange mine = group.shard(bucket);
    const Dim end = mine.in_flat + mine.size;
    const auto add = [&](Dim from, Dim to) {
      if (from < to) out.push_back({from, mine.in_shards + from - mine.in_flat, to - from});
    };
    Dim begin = mine.in_flat;
    for (const Param* param : members) {
      const Dim last = param->flat_begin + param->numel();
      if (param->owned || last <= begin || param->flat_begin >= end) continue;
      add(begin, param->flat_begin);
      begin = last;
    }
    add(begin, end);
  }
  return out;
}

std::vector<ParamSlab> slabs_of(const ParamGroup& group, const StateView& state, SlabsOf which) {
  std::vector<ParamSlab> out;
  if (which == SlabsOf::owner && !group.position().is_first(mesh::Axis::replica)) return out;
  for (const Param* param : group.params()) {
    if (which == SlabsOf::owner && !param->owned) continue;
    const bool in_shard = which == SlabsOf::owner || state.sharded;
    const ElementRange mine = in_shard ? group.shard(group.bucket_of(*param)) : group.all();
    const Dim begin = std::max(mine.in_flat - param->flat_begin, Dim{0});
    const Dim end = std::min(mine.in_flat + mine.size - param->flat_begin, param->numel());
    for (const Hyperslab& local : hyperslabs_of_range(param->part.count, begin, end)) {
      const Dim flat = param->flat_begin + first_element(local, param->part.count);
      const ElementRange range = {flat, mine.in_shards + flat - mine.in_flat, local.numel()};
      const View data = state.at(range).reshaped(local.count);
      out.push_back({param, local.shift(param->part.offset), data});
    }
  }
  return out;
}

}  // namespace hyperslab::param
