// SPDX-License-Identifier: Apache-2.0
#include "fp8_gather.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/fp8.hpp"

namespace hyperslab::sharding {
namespace {

constexpr ops::Fp8Format kFormat = ops::Fp8Format::e4m3;
constexpr Dim kSlot = 4;  // between amaxes and between scales: fp8_matmul reads these
                          // at multiples of 16 bytes

View slot(View numbers, std::size_t index) {
  return numbers.slice(static_cast<Dim>(index) * kSlot, 1);
}

/// Amaxes as integers, ordered as their bits: NaN stays above all in a maximum.
View as_integers(View amaxes) {
  return {amaxes.raw(), DType::i32, amaxes.device(), amaxes.shape()};
}

/// Elements of a multiple of ops::kFp8Multiple as rows that an op rounds.
template <class AnyView>
AnyView in_rows(AnyView flat) {
  return flat.reshaped({flat.numel() / ops::kFp8Multiple, ops::kFp8Multiple});
}

Dim total_size(const auto& ranges) {
  Dim sum = 0;
  for (const auto& range : ranges) sum += range.size;
  return sum;
}

}  // namespace

Fp8Gather::Range Fp8Gather::Range::within(const Range& other) const {
  const Dim first = std::max(begin, other.begin);
  return {first, std::max(Dim{0}, std::min(begin + size, other.begin + other.size) - first)};
}

Fp8Gather::Fp8Gather(param::ParamStore& store, Arena& arena)
    : group_(store.trained()), parts_(store.trained().buckets().size()) {
  std::vector<std::vector<param::KeptFp8*>> matrices(parts_.size());
  for (param::KeptFp8& gathered : store.kept_fp8()) {
    if (!gathered.gathered) continue;
    const param::Bucket& home = group_.bucket_of(*gathered.matrix.members().front());
    const auto bucket = static_cast<std::size_t>(&home - group_.buckets().data());
    const Dim begin = gathered.matrix.members().front()->flat_begin - home.begin;
    parts_[bucket].matrices.push_back({begin, gathered.matrix.value().numel()});
    matrices[bucket].push_back(&gathered);
  }
  for (std::size_t bucket = 0; bucket < parts_.size(); ++bucket) {
    if (!covers(bucket)) continue;
    last_ = bucket;
    Part& part = parts_[bucket];
    const Dim count = static_cast<Dim>(part.matrices.size()) * kSlot;
    part.values =
        arena.take(DType::u8, {group_.buckets()[bucket].size()}, "FP8 values of matrices");
    part.amax = arena.take(DType::f32, {count}, "amaxes of matrices");
    part.scales = arena.take(DType::f32, {count}, "scales of matrices");
    find_rest(bucket);
    Dim most = 0;
    for (const std::vector<Range>& of_rank : part.rest) most = std::max(most, total_size(of_rank));
    if (most > 0 && part.rest.size() > 1) {
      const DType dtype = group_.value().data.dtype();
      part.packed = arena.take(dtype, {static_cast<Dim>(part.rest.size()), most}, "packed values");
    }
    for (std::size_t i = 0; i < part.matrices.size(); ++i) {
      param::KeptFp8& gathered = *matrices[bucket][i];
      const auto [begin, size] = part.matrices[i];
      gathered.values = part.values.slice(begin, size).reshaped(gathered.matrix.value().shape());
      gathered.amax = slot(part.amax, i);
      gathered.scale = slot(part.scales, i);
    }
  }
}

Fp8Gather::Range Fp8Gather::shard(std::size_t bucket, int rank) const {
  const Dim size = group_.buckets()[bucket].size() / group_.position().size(mesh::kShards);
  return {rank * size, size};
}

View Fp8Gather::values(std::size_t bucket) const {
  const param::Bucket& home = group_.buckets()[bucket];
  return group_.value().data.slice(home.begin, home.size());
}

/// Matrices of a bucket lie there in the order in which they were declared.
void Fp8Gather::find_rest(std::size_t bucket) {
  Part& part = parts_[bucket];
  const Dim end = group_.buckets()[bucket].size();
  std::vector<Range> gaps;
  Dim next = 0;
  for (const auto& [begin, size] : part.matrices) {
    gaps.push_back({next, begin - next});
    next = begin + size;
  }
  gaps.push_back({next, end - next});
  for (int rank = 0; rank < group_.position().size(mesh::kShards); ++rank) {
    std::vector<Range>& rest = part.rest.emplace_back();
    for (const Range& gap : gaps) {
      const Range inside = gap.within(shard(bucket, rank));
      if (inside.size > 0) rest.push_back(inside);
    }
  }
}

std::vector<layout::Step> Fp8Gather::steps(std::size_t bucket) const {
  using Kind = layout::Step::Kind;
  const Part& part = parts_[bucket];
  const auto encoded = static_cast<std::size_t>(shard(bucket, 0).size);
  if (group_.position().size(mesh::kShards) == 1) return {{Kind::encode, {}, encoded}};
  std::vector<layout::Step> all = {{Kind::agree_scales, mesh::kShards, part.amax.bytes()},
                                   {Kind::encode, {}, encoded},
                                   {Kind::all_gather, mesh::kShards, part.values.bytes()}};
  if (part.packed) all.push_back({Kind::all_gather, mesh::kShards, part.packed.bytes()});
  return all;
}

void Fp8Gather::find_amaxes(Context& ctx, comm::Communicator& data, std::size_t bucket) {
  Part& part = parts_[bucket];
  const Range mine = shard(bucket, group_.position().at(mesh::kShards));
  const View updated = values(bucket);
  ops::fill(ctx, 0, part.amax);
  for (std::size_t i = 0; i < part.matrices.size(); ++i) {
    const auto [begin, size] = part.matrices[i].within(mine);
    if (size > 0) ops::fp8_amax(ctx, updated.slice(begin, size), slot(part.amax, i));
  }
  if (data.size() == 1) return;
  part.amaxes = data.all_reduce(ctx, as_integers(part.amax), comm::ReduceOp::max);
}

void Fp8Gather::round_shard(Context& ctx, comm::Communicator& data, std::size_t bucket) {
  Part& part = parts_[bucket];
  if (part.amaxes != 0) {
    std::optional<Scope<Phase>> waiting;  // for late ranks, which the host does on a CPU
    if (ctx.device() == Device::cpu) waiting.emplace(ctx.recorder(), Phase::wait);
    data.wait(ctx, std::exchange(part.amaxes, 0));
  }
  ops::fp8_scales(ctx, kFormat, part.amax, part.scales);
  const Range mine = shard(bucket, group_.position().at(mesh::kShards));
  const View updated = values(bucket);
  for (std::size_t i = 0; i < part.matrices.size(); ++i) {
    const auto [begin, size] = part.matrices[i].within(mine);
    if (size == 0) continue;
    const ops::Fp8Matrix rounded = {kFormat, ops::Fp8Scaling::tensor,
                                    in_rows(part.values.slice(begin, size)), slot(part.amax, i),
                                    slot(part.scales, i)};
    ops::fp8_quantize(ctx, in_rows(CView(updated.slice(begin, size))), rounded, {},
                      ops::Fp8Amax::given);
  }
}

void Fp8Gather::for_rest(std::size_t bucket, int rank, auto&& visit) const {
  const Part& part = parts_[bucket];
  const View packed = part.packed.slice(rank, 1).flat();
  Dim next = 0;
  for (const auto& [begin, size] : part.rest[static_cast<std::size_t>(rank)]) {
    visit(values(bucket).slice(begin, size), packed.slice(next, size));
    next += size;
  }
}

void Fp8Gather::start(Context& ctx, comm::Communicator& data, std::size_t bucket) {
  find_amaxes(ctx, data, bucket);
  // Forward waits for the update alone, as no gather follows.
  if (data.size() == 1) return round_shard(ctx, data, bucket);
  if (unsent_) send(ctx, data, *unsent_);
  unsent_ = bucket;
  if (bucket != last_) return;
  unsent_.reset();
  send(ctx, data, bucket);
}

void Fp8Gather::send(Context& ctx, comm::Communicator& data, std::size_t bucket) {
  round_shard(ctx, data, bucket);
  Part& part = parts_[bucket];
  const auto [begin, size] = shard(bucket, data.rank());
  part.fp8_gather = data.all_gather(ctx, part.values.slice(begin, size), part.values);
  if (part.packed) {
    for_rest(bucket, data.rank(), [&](View value, View packed) { copy(ctx, value, packed); });
    part.rest_gather =
        data.all_gather(ctx, part.packed.slice(data.rank(), 1).flat(), part.packed.flat());
  }
  part.lacks_values = true;
}

void Fp8Gather::await(Context& ctx, comm::Communicator& data, std::size_t bucket) {
  Part& part = parts_[bucket];
  if (part.fp8_gather == 0) return;
  data.wait(ctx, std::exchange(part.fp8_gather, 0));
  if (part.rest_gather == 0) return;
  data.wait(ctx, std::exchange(part.rest_gather, 0));
  for (int rank = 0; rank < data.size(); ++rank) {
    if (rank == data.rank()) continue;
    for_rest(bucket, rank, [&](View value, View packed) { copy(ctx, packed, value); });
  }
}

void Fp8Gather::gather_values(Context& ctx, comm::Communicator& data) {
  for (std::size_t bucket = 0; bucket < parts_.size(); ++bucket) {
    if (!std::exchange(parts_[bucket].lacks_values, false)) continue;
    const View all = values(bucket);
    const auto [begin, size] = shard(bucket, data.rank());
    data.wait(ctx, data.all_gather(ctx, all.slice(begin, size), all));
  }
}

}  // namespace hyperslab::sharding
