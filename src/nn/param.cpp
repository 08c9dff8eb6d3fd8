// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/param.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::nn {
namespace {

constexpr Dim kPackAlignment = 32;       // elements: 64 bytes in the narrowest dtype
constexpr Dim kBucketGranule = 128 / 4;  // elements of f32 for each rank

Dim round_up(Dim value, Dim unit) { return (value + unit - 1) / unit * unit; }

template <class ViewType>
ViewType joined(const std::vector<Param*>& members, ViewType first) {
  if (!first) return {};
  const Shape& shape = members.front()->count;
  std::array<Dim, kMaxRank> dims{};
  std::copy(shape.dims().begin(), shape.dims().end(), dims.begin());
  dims[0] = 0;
  for (const Param* member : members) dims[0] += member->stored_rows;
  return ViewType(first.raw(), first.dtype(), first.device(),
                  Shape(std::span<const Dim>(dims.data(), shape.dims().size())));
}

/// The shape of `spec`'s tensor with `dimension` replaced.
Shape with(const Shape& shape, int dimension, Dim size) {
  std::array<Dim, kMaxRank> dims{};
  std::copy(shape.dims().begin(), shape.dims().end(), dims.begin());
  if (dimension >= 0) dims[static_cast<std::size_t>(dimension)] = size;
  return Shape(std::span<const Dim>(dims.data(), shape.dims().size()));
}

BucketKind kind_of(const ParamSpec& spec) {
  if (spec.tied) return BucketKind::tied;
  switch (spec.holding) {
    case Holding::summed: return BucketKind::summed;
    case Holding::equal: return BucketKind::equal;
    case Holding::parts: break;
  }
  return BucketKind::parts;
}

}  // namespace

Dim Param::stored_numel() const {
  return count[0] == 0 ? stored_rows * (count.rank() == 2 ? count[1] : 1)
                       : count.numel() / count[0] * stored_rows;
}

CView Pack::value() const { return joined<CView>(members, members.front()->value); }
View Pack::gradient() const { return joined<View>(members, members.front()->gradient); }

void ParamTable::begin_unit() { ++unit_; }

Pack ParamTable::declare(std::span<const ParamSpec> specs) {
  require(unit_ >= 0, "a parameter was declared before the first unit");
  runs_.push_back({params_.size(), specs.size(), unit_, unit_, kind_of(specs.front())});
  Pack pack;
  for (const ParamSpec& spec : specs) {
    require(kind_of(spec) == runs_.back().kind, "the members of a pack are held alike");
    const std::array<Dim, kMaxRank> zeros{};
    const Part& part = spec.part;
    const Shape origin(std::span<const Dim>(zeros.data(), spec.shape.dims().size()));
    Param& param = params_.emplace_back();
    param.name = spec.name;
    param.global_shape = spec.shape;
    param.offset = with(origin, part.dimension, part.first);
    param.count = with(spec.shape, part.dimension, part.count);
    param.stored_rows = part.dimension == 0 && part.stored > 0 ? part.stored : param.count[0];
    param.kind = spec.kind;
    param.init = spec.init;
    param.init_std = spec.init_std;
    param.replicas = spec.replicas;
    param.replica = spec.replica;
    param.unit = unit_;
    pack.members.push_back(&param);
  }
  return pack;
}

Param& ParamTable::declare(const ParamSpec& spec) {
  return *declare(std::span<const ParamSpec>(&spec, 1)).members.front();
}

void ParamTable::use_again(const Pack& pack) {
  for (Run& run : runs_) {
    if (&params_[run.first] == pack.members.front()) run.last_unit = unit_;
  }
}

Dim ParamTable::size_of(const Run& run) const {
  Dim size = 0;
  for (std::size_t i = 0; i < run.count; ++i) size += params_[run.first + i].stored_numel();
  return round_up(size, kPackAlignment);
}

/// A bucket for each kind of parameters that does not come in parts; empty where there are none.
std::vector<Bucket> ParamTable::whole_buckets() const {
  std::vector<Bucket> buckets;
  for (const BucketKind kind : {BucketKind::tied, BucketKind::summed, BucketKind::equal}) {
    Bucket bucket = {unit_ + 1, -1, 0, 0, kind};
    for (const Run& run : runs_) {
      if (run.kind != kind) continue;
      bucket.first_unit = std::min(bucket.first_unit, run.unit);
      bucket.last_unit = std::max(bucket.last_unit, run.last_unit);
      bucket.end += size_of(run);
    }
    if (bucket.end > 0) buckets.push_back(bucket);
  }
  return buckets;
}

/// Buckets close in the order in which backward finishes units: last unit first.
std::vector<Bucket> ParamTable::part_buckets(std::size_t bucket_bytes) const {
  std::vector<Dim> unit_size(static_cast<std::size_t>(unit_ + 1), 0);
  for (const Run& run : runs_) {
    if (run.kind == BucketKind::parts) {
      unit_size[static_cast<std::size_t>(run.unit)] += size_of(run);
    }
  }
  std::vector<Bucket> buckets;
  Dim open_size = 0;
  int first_filled = unit_;
  int last = unit_;
  for (int unit = unit_; unit >= 0; --unit) {
    const Dim size = unit_size[static_cast<std::size_t>(unit)];
    open_size += size;
    if (size > 0) first_filled = unit;
    const bool full = open_size > 0 && static_cast<std::size_t>(open_size) * 4 >= bucket_bytes;
    if (!full && (unit > 0 || open_size == 0)) continue;
    buckets.push_back({first_filled, last, 0, open_size, BucketKind::parts});
    open_size = 0;
    last = unit - 1;
  }
  std::ranges::reverse(buckets);
  return buckets;
}

void ParamTable::form_buckets(int ranks, std::size_t bucket_bytes) {
  buckets_ = whole_buckets();
  const std::vector<Bucket> parts = part_buckets(bucket_bytes);
  buckets_.insert(buckets_.end(), parts.begin(), parts.end());
  flat_size_ = 0;
  for (Bucket& bucket : buckets_) {
    const Dim size = round_up(bucket.end, ranks * kBucketGranule);
    bucket.begin = flat_size_;
    bucket.end = flat_size_ += size;
  }
}

void ParamTable::lay_out(int ranks, std::size_t bucket_bytes) {
  form_buckets(std::max(ranks, 1), bucket_bytes);
  std::vector<Dim> next;
  next.reserve(buckets_.size());
  for (const Bucket& bucket : buckets_) next.push_back(bucket.begin);
  for (const Run& run : runs_) {
    const auto home = std::ranges::find_if(buckets_, [&](const Bucket& bucket) {
      return bucket.kind == run.kind && run.unit >= bucket.first_unit &&
             run.unit <= bucket.last_unit;
    });
    Dim& place = next[static_cast<std::size_t>(home - buckets_.begin())];
    for (std::size_t i = 0; i < run.count; ++i) {
      params_[run.first + i].flat_begin = place;
      place += params_[run.first + i].stored_numel();
    }
    place = round_up(place, kPackAlignment);
  }
}

void ParamTable::bind(Arena& parameters, Arena* gradients, DType master, DType compute,
                      const Sharding& sharding) {
  sharding_ = sharding;
  const bool own_value = compute != master;
  masters_are_sharded_ = own_value && sharding.zero > 0;
  master_ = parameters.take(master, {masters_are_sharded_ ? shard_size() : flat_size_}, "masters");
  value_ = own_value ? parameters.take(compute, {flat_size_}, "values") : master_;
  if (gradients != nullptr && sharding.zero < 2) {
    gradient_ = gradients->take(master, {flat_size_}, "gradients");
  } else if (gradients != nullptr) {
    gradient_shards_ = gradients->take(master, {shard_size()}, "gradient shards");
    take_ring(*gradients, master);
  }
  for (Param& param : params_) bind_views(param);
}

void ParamTable::take_ring(Arena& gradients, DType dtype) {
  Dim largest = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.kind == BucketKind::parts) largest = std::max(largest, bucket.size());
  }
  const std::array<View, 2> buffers = {gradients.take(dtype, {largest}, "gradient bucket 0"),
                                       gradients.take(dtype, {largest}, "gradient bucket 1")};
  std::size_t turn = 0;
  for (const Bucket& bucket : buckets_) {
    ring_.push_back(bucket.kind == BucketKind::parts
                        ? buffers[turn++ % 2].slice(0, bucket.size())
                        : gradients.take(dtype, {bucket.size()}, "gradient bucket"));
  }
}

View ParamTable::gradient(const Bucket& bucket) const {
  const auto index = static_cast<std::size_t>(&bucket - buckets_.data());
  if (!ring_.empty()) return ring_.at(index);
  return gradient_ ? gradient_.slice(bucket.begin, bucket.size()) : View();
}

void ParamTable::bind_views(Param& param) {
  const auto bucket = std::ranges::find_if(buckets_, [&](const Bucket& candidate) {
    return param.flat_begin >= candidate.begin && param.flat_begin < candidate.end;
  });
  const auto part_of = [&](View flat, Dim begin) {
    return flat.slice(begin, param.numel()).reshaped(param.count);
  };
  if (!masters_are_sharded_) param.master = part_of(master_, param.flat_begin);
  param.value = part_of(value_, param.flat_begin);
  if (const View home = gradient(*bucket)) {
    param.gradient = part_of(home, param.flat_begin - bucket->begin);
  }
}

std::vector<ShardPiece> shard_pieces(const ParamTable& table) {
  std::vector<ShardPiece> out;
  for (const Bucket& bucket : table.buckets()) {
    const Dim first = table.shard_in_flat(bucket);
    const Dim last = first + table.shard_size(bucket);
    for (const Param& param : table.params()) {
      const Dim begin = std::max(first - param.flat_begin, Dim{0});
      const Dim end = std::min(last - param.flat_begin, param.numel());
      for (const Hyperslab& piece : hyperslabs_of_range(param.count, begin, end)) {
        const Dim in_flat = param.flat_begin + first_element(piece, param.count);
        out.push_back({&param, piece, in_flat, table.shard_in_space(bucket) + in_flat - first});
      }
    }
  }
  return out;
}

}  // namespace hyperslab::nn
