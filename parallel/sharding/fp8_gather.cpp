// SPDX-License-Identifier: Apache-2.0
#include "fp8_gather.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "hyperslab/core/error.hpp"
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

Fp8Gather::Fp8Gather(const param::ParamGroup& group, const param::Bucket& bucket, Fp8Gather* before,
                     const std::vector<param::KeptFp8*>& matrices, Arena& arena)
    : values_(group.present(bucket)),
      shard_size_(group.shard(bucket).size),
      rank_(group.position().at(mesh::kShards)),
      before_(before) {
  require(group.has_own_values(), "FP8 values are gathered of values that are the masters");
  if (before_ != nullptr) before_->is_last_ = false;
  const int ranks = group.position().size(mesh::kShards);
  const Dim count = static_cast<Dim>(matrices.size()) * kSlot;
  fp8_ = arena.take(DType::u8, {bucket.size()}, "FP8 values of matrices");
  amax_ = arena.take(DType::f32, {count}, "amaxes of matrices");
  scales_ = arena.take(DType::f32, {count}, "scales of matrices");
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    param::KeptFp8& kept = *matrices[i];
    const Shape shape = kept.matrix.value().shape();
    const Dim begin = kept.matrix.members().front()->flat_begin - bucket.begin;
    matrices_.push_back({begin, shape.numel()});
    kept.values = fp8_.slice(begin, shape.numel()).reshaped(shape);
    kept.amax = slot(amax_, i);
    kept.scale = slot(scales_, i);
  }
  find_rest(ranks);
  Dim most = 0;
  for (const std::vector<Range>& of_rank : rest_) most = std::max(most, total_size(of_rank));
  if (most > 0 && ranks > 1) {
    packed_ = arena.take(values_.dtype(), {ranks, most}, "packed values");
  }
  find_steps(group.position());
}

void Fp8Gather::find_rest(int ranks) {
  std::vector<Range> gaps;
  Dim next = 0;
  for (const auto& [begin, size] : matrices_) {
    gaps.push_back({next, begin - next});
    next = begin + size;
  }
  gaps.push_back({next, values_.numel() - next});
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Range>& rest = rest_.emplace_back();
    for (const Range& gap : gaps) {
      const Range inside = gap.within(shard(rank));
      if (inside.size > 0) rest.push_back(inside);
    }
  }
}

void Fp8Gather::find_steps(const mesh::Position& at) {
  using Kind = layout::Step::Kind;
  mesh::AxisSet axes;
  for (const mesh::Axis axis : mesh::kAxes) {
    if (mesh::kShards.contains(axis) && at.size(axis) > 1) axes = axes | axis;
  }
  steps_ = {{Kind::encode, {}, static_cast<std::size_t>(shard_size_)}};
  if (axes.empty()) return;
  steps_.insert(steps_.begin(), {Kind::agree_scales, axes, amax_.bytes()});
  steps_.push_back({Kind::all_gather, axes, fp8_.bytes()});
  if (packed_) steps_.push_back({Kind::all_gather, axes, packed_.bytes()});
}

void Fp8Gather::find_amaxes(Context& ctx) {
  ops::fill(ctx, 0, amax_);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const auto [begin, size] = matrices_[i].within(shard(rank_));
    if (size > 0) ops::fp8_amax(ctx, values_.slice(begin, size), slot(amax_, i));
  }
  if (data_->size() == 1) return;
  amaxes_ = data_->all_reduce(ctx, as_integers(amax_), comm::ReduceOp::max);
}

void Fp8Gather::round_shard(Context& ctx) {
  if (amaxes_ != 0) {
    std::optional<Scope<Phase>> waiting;  // for late ranks, which the host does on a CPU
    if (ctx.device() == Device::cpu) waiting.emplace(ctx.recorder(), Phase::wait);
    data_->wait(ctx, std::exchange(amaxes_, 0));
  }
  ops::fp8_scales(ctx, kFormat, amax_, scales_);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const auto [begin, size] = matrices_[i].within(shard(rank_));
    if (size == 0) continue;
    const ops::Fp8Matrix rounded = {kFormat, ops::Fp8Scaling::tensor,
                                    in_rows(fp8_.slice(begin, size)), slot(amax_, i),
                                    slot(scales_, i)};
    ops::fp8_quantize(ctx, in_rows(CView(values_.slice(begin, size))), rounded, {},
                      ops::Fp8Amax::given);
  }
}

void Fp8Gather::for_rest(int rank, auto&& visit) const {
  const View packed = packed_.slice(rank, 1).flat();
  Dim next = 0;
  for (const auto& [begin, size] : rest_[static_cast<std::size_t>(rank)]) {
    visit(values_.slice(begin, size), packed.slice(next, size));
    next += size;
  }
}

void Fp8Gather::start(Context& ctx) {
  find_amaxes(ctx);
  // Forward waits for the update alone, as no gather follows.
  if (data_->size() == 1) return round_shard(ctx);
  if (before_ != nullptr) before_->send(ctx);
  if (is_last_) send(ctx);
}

void Fp8Gather::send(Context& ctx) {
  round_shard(ctx);
  fp8_gather_ = data_->all_gather(ctx, fp8_.slice(rank_ * shard_size_, shard_size_), fp8_);
  if (packed_) {
    for_rest(rank_, [&](View value, View packed) { copy(ctx, value, packed); });
    rest_gather_ = data_->all_gather(ctx, packed_.slice(rank_, 1).flat(), packed_.flat());
  }
  lacks_values_ = true;
}

void Fp8Gather::wait(Context& ctx) {
  if (fp8_gather_ == 0) return;
  data_->wait(ctx, std::exchange(fp8_gather_, 0));
  if (rest_gather_ == 0) return;
  data_->wait(ctx, std::exchange(rest_gather_, 0));
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == rank_) continue;
    for_rest(rank, [&](View value, View packed) { copy(ctx, packed, value); });
  }
}

void Fp8Gather::complete(Context& ctx) {
  if (!std::exchange(lacks_values_, false)) return;
  const View mine = values_.slice(rank_ * shard_size_, shard_size_);
  data_->wait(ctx, data_->all_gather(ctx, mine, values_));
}

}  // namespace hyperslab::sharding
