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

Dim total_size(const auto& rest) {
  Dim sum = 0;
  for (const auto& each : rest) sum += each.in_bucket.size;
  return sum;
}

}  // namespace

Fp8Gather::Range Fp8Gather::Range::within(const Range& other) const {
  const Dim first = std::max(begin, other.begin);
  return {first, std::max(Dim{0}, std::min(begin + size, other.begin + other.size) - first)};
}

Fp8Gather::Fp8Gather(const param::ParamGroup& group, const param::Bucket& bucket, Fp8Gather* before,
                     const std::vector<param::KeptFp8*>& matrices, View room, Arena& arena)
    : values_(room ? View() : group.present(bucket)),
      shard_(group.value().at(group.shard(bucket))),
      axes_(bucket.cut_axes()),
      rank_(group.position().at(axes_)),
      before_(before) {
  require(group.has_own_values(), "FP8 values are gathered of values that are the masters");
  if (before_ != nullptr) before_->is_last_ = false;
  const int ranks = group.position().size(axes_);
  const Dim count = static_cast<Dim>(matrices.size()) * kSlot;
  fp8_ = room ? room : arena.take(DType::u8, {bucket.size()}, "FP8 values of matrices");
  fp8_shard_ = room ? arena.take(DType::u8, {shard_.numel()}, "FP8 values of matrices")
                    : fp8_.slice(shard(rank_).begin, shard_.numel());
  amax_ = arena.take(DType::f32, {count}, "amaxes of matrices");
  scales_ = arena.take(DType::f32, {count}, "scales of matrices");
  for (const param::KeptFp8* kept : matrices) {
    const Dim begin = kept->matrix.members().front()->flat_begin - bucket.begin;
    matrices_.push_back({begin, kept->matrix.shape().numel()});
  }
  find_rest(ranks);
  if (in_room()) bind_params(group, bucket, arena);
  bind(matrices);
  Dim most = 0;
  for (const std::vector<Rest>& of_rank : rest_) most = std::max(most, total_size(of_rank));
  if (most > 0 && (ranks > 1 || in_room())) {
    packed_ = arena.take(shard_.dtype(), {ranks, most}, "packed values");
  }
  find_steps(group.position());
}

void Fp8Gather::bind(const std::vector<param::KeptFp8*>& matrices) {
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    param::KeptFp8& kept = *matrices[i];
    const Shape shape = kept.matrix.shape();
    kept.values = fp8_.slice(matrices_[i].begin, shape.numel()).reshaped(shape);
    kept.amax = slot(amax_, i);
    kept.scale = slot(scales_, i);
    if (in_room()) kept.bytes = 0;  // backward transposes them for each product
  }
}

void Fp8Gather::find_rest(int ranks) {
  std::vector<Range> gaps;
  Dim next = 0;
  for (const auto& [begin, size] : matrices_) {
    gaps.push_back({next, begin - next});
    next = begin + size;
  }
  gaps.push_back({next, ranks * shard_.numel() - next});
  Dim begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Rest>& rest = rest_.emplace_back();
    for (const Range& gap : gaps) {
      const Range inside = gap.within(shard(rank));
      if (inside.size == 0) continue;
      rest.push_back({inside, begin});
      begin += inside.size;
    }
  }
}

void Fp8Gather::bind_params(const param::ParamGroup& group, const param::Bucket& bucket,
                            Arena& arena) {
  Dim size = 0;
  for (const std::vector<Rest>& rest : rest_) size += total_size(rest);
  if (size > 0) rest_values_ = arena.take(shard_.dtype(), {size}, "values beside matrices");
  for (param::Param* param : group.params()) {
    if (!bucket.contains(*param)) continue;
    const Range mine = {param->flat_begin - bucket.begin, param->numel()};
    Dim before = mine.begin;  // elements beside the matrices
    bool is_matrix = false;
    for (const Range& matrix : matrices_) {
      if (matrix.begin <= mine.begin) before -= matrix.size;
      is_matrix |= mine.within(matrix).size > 0;
    }
    const Shape& shape = param->part.count;
    param->value = is_matrix ? View(nullptr, shard_.dtype(), shard_.device(), shape)
                             : rest_values_.slice(before, mine.size).reshaped(shape);
  }
}

void Fp8Gather::find_steps(const mesh::Position& at) {
  using Kind = layout::Step::Kind;
  mesh::AxisSet axes;
  for (const mesh::Axis axis : mesh::kAxes) {
    if (axes_.contains(axis) && at.size(axis) > 1) axes = axes | axis;
  }
  std::vector<layout::Step> round = {{Kind::encode, {}, static_cast<std::size_t>(shard_.numel())}};
  std::vector<layout::Step> gather;
  std::vector<layout::Step> gather_rest;
  if (!axes.empty()) {
    round.insert(round.begin(), {Kind::agree_scales, axes, amax_.bytes()});
    gather.push_back({Kind::all_gather, axes, fp8_.bytes()});
    if (packed_) gather_rest.push_back({Kind::all_gather, axes, packed_.bytes()});
  }
  const auto append = [](std::vector<layout::Step>& to, const std::vector<layout::Step>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(in_room() ? update_steps_ : steps_, round);
  append(steps_, gather);
  append(in_room() ? update_steps_ : steps_, gather_rest);
}

void Fp8Gather::find_amaxes(Context& ctx) {
  ops::fill(ctx, 0, amax_);
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const auto [begin, size] = matrices_[i].within(shard(rank_));
    if (size == 0) continue;
    ops::fp8_amax(ctx, shard_.slice(begin - shard(rank_).begin, size), slot(amax_, i));
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
    const Dim from = begin - shard(rank_).begin;
    const ops::Fp8Matrix rounded = {kFormat, ops::Fp8Scaling::tensor,
                                    in_rows(fp8_shard_.slice(from, size)), slot(amax_, i),
                                    slot(scales_, i)};
    ops::fp8_quantize(ctx, in_rows(CView(shard_.slice(from, size))), rounded, {},
                      ops::Fp8Amax::given);
  }
}

void Fp8Gather::for_rest(int rank, auto&& visit) const {
  const View packed = packed_.slice(rank, 1).flat();
  Dim next = 0;
  for (const Rest& rest : rest_[static_cast<std::size_t>(rank)]) {
    visit(rest, packed.slice(next, rest.in_bucket.size));
    next += rest.in_bucket.size;
  }
}

void Fp8Gather::updated(Context& ctx) {
  find_amaxes(ctx);
  // Forward waits for the update alone, as no gather follows.
  if (data_->size() == 1 && !in_room()) return round_shard(ctx);
  if (before_ != nullptr) before_->send(ctx);
  if (is_last_) send(ctx);
}

void Fp8Gather::send(Context& ctx) {
  round_shard(ctx);
  if (in_room()) {
    rounded_ = ctx.stream().record();
  } else {
    fp8_gather_ = data_->all_gather(ctx, fp8_shard_, fp8_);
    lacks_values_ = true;
  }
  if (!packed_) return;
  for_rest(rank_, [&](const Rest& rest, View packed) {
    const auto& [begin, size] = rest.in_bucket;
    copy(ctx, shard_.slice(begin - shard(rank_).begin, size), packed);
  });
  rest_gather_ = data_->all_gather(ctx, packed_.slice(rank_, 1).flat(), packed_.flat());
}

void Fp8Gather::start(Context& ctx) {
  if (!in_room()) return;  // send() has
  ctx.stream().wait(std::exchange(rounded_, {}));
  fp8_gather_ = data_->all_gather(ctx, fp8_shard_, fp8_);
}

void Fp8Gather::wait(Context& ctx) {
  if (fp8_gather_ != 0) data_->wait(ctx, std::exchange(fp8_gather_, 0));
  if (rest_gather_ == 0) return;
  data_->wait(ctx, std::exchange(rest_gather_, 0));
  for (int rank = 0; rank < data_->size(); ++rank) {
    if (rank == rank_ && !in_room()) continue;
    for_rest(rank, [&](const Rest& rest, View packed) {
      const Dim size = rest.in_bucket.size;
      copy(ctx, packed,
           in_room() ? rest_values_.slice(rest.begin, size)
                     : values_.slice(rest.in_bucket.begin, size));
    });
  }
}

void Fp8Gather::complete(Context& ctx) {
  if (!std::exchange(lacks_values_, false)) return;
  data_->wait(ctx, data_->all_gather(ctx, shard_, values_));
}

}  // namespace hyperslab::sharding
