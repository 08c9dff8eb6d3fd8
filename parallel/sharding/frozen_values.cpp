// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/frozen_values.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "hyperslab/core/round_up.hpp"
#include "hyperslab/core/transfer.hpp"
#include "quantized_arrays.hpp"
#include "rooms.hpp"
#include "value_gather.hpp"

namespace hyperslab::sharding {
namespace {

using param::QuantizedWeight;

constexpr Dim kArrayAlignment = 256;  // bytes of an array in a room

/// Takes the arrays of matrices one after the other from bytes, or counts them.
class Cursor {
 public:
  explicit Cursor(View bytes = {}) : bytes_(bytes) {}
  View take(DType dtype, const Shape& shape) {
    const Dim begin = std::exchange(
        used_, used_ + round_up(shape.numel() * static_cast<Dim>(size_of(dtype)), kArrayAlignment));
    if (!bytes_) return {};
    return {bytes_.slice(begin, 0).raw(), dtype, bytes_.device(), shape};
  }
  [[nodiscard]] Dim used() const { return used_; }

 private:
  View bytes_;
  Dim used_ = 0;
};

Dim bytes_of(const QuantizedWeight& weight) {
  Cursor cursor;
  (void)quantized_arrays(weight, [&](DType dtype, const Shape& shape, const char*) {
    return cursor.take(dtype, shape);
  });
  return cursor.used();
}

bool is_of_experts(const QuantizedWeight& weight) {
  return weight.members.front()->placement.expert.is_shard();
}

layout::Layout in_format(layout::Layout layout, DType dtype) {
  layout.format.dtype = dtype;
  return layout;
}

/// Copies what `rest`, bytes [begin, begin + size) of a room, holds of the room's bytes [from, to).
void keep(Context& ctx, const View& room, const View& rest, Dim begin, Dim from, Dim to) {
  const Dim first = std::max(begin, from);
  const Dim last = std::min(begin + rest.numel(), to);
  if (first >= last) return;
  copy(ctx, room.slice(first, last - first), rest.slice(first - begin, last - first));
}

}  // namespace

void FrozenValues::allocate(param::ParamStore& store, const Residence& residence, Arena& arena,
                            DType compute) {
  if (!store.frozen().params().empty()) {
    allocate_values(store.frozen(), residence, arena, compute);
  }
  if (is_flat(residence.value)) return allocate_quantized(store, residence, arena);
  for (QuantizedWeight& weight : store.quantized_weights()) {
    if (weight.frozen) weight.matrix = quantized_arrays(weight, arena);
  }
}

void FrozenValues::allocate_values(param::ParamGroup& group, const Residence& residence,
                                   Arena& arena, DType compute) {
  const bool sharded = is_flat(residence.value);
  const Dim size = sharded ? group.shard_size() : group.flat_size();
  const View values = arena.take(compute, {size}, "frozen values");
  param::ParamGroup::Memory memory = {.master = {}, .value = {values, sharded}, .gradients = {}};
  if (sharded) {
    memory.present =
        take_rooms(group, residence.present_rooms, arena, compute, "present frozen values",
                   [&](const param::Bucket& bucket) { return !group.is_of_own_experts(bucket); });
    keep_own_experts(group, memory.value, memory.present);
  }
  group.bind(std::move(memory));
  if (!sharded) return;
  const layout::Layout rests = in_format(residence.value, compute);
  const layout::Layout present = in_format(residence.present, compute);
  for (const param::Bucket& bucket : group.buckets()) {
    if (group.is_of_own_experts(bucket)) continue;
    const View room = group.present(bucket);
    values_.add({bucket.first_unit, bucket.last_unit, room.raw(), bucket.is_of_experts(),
                 bucket.is_sharded(),
                 std::make_unique<MovedValues>(of_bucket(bucket, rests), of_bucket(bucket, present),
                                               group.value().at(group.shard(bucket)), room)});
  }
}

/// The matrices of a unit are a bucket of bytes, and its experts' matrices another.
void FrozenValues::allocate_quantized(param::ParamStore& store, const Residence& residence,
                                      Arena& arena) {
  for (const bool of_experts : {false, true}) {
    std::vector<std::vector<QuantizedWeight*>> by_unit(static_cast<std::size_t>(store.units()));
    for (QuantizedWeight& weight : store.quantized_weights()) {
      if (!weight.frozen || is_of_experts(weight) != of_experts) continue;
      by_unit[static_cast<std::size_t>(weight.unit)].push_back(&weight);
    }
    const param::Bucket kind = {
        .placement = {.expert = of_experts ? layout::shard(0) : layout::replicate()}};
    add_quantized(by_unit, store.frozen().position(), kind, residence, arena);
  }
}

/// `kind`: a bucket that is cut as these are.
void FrozenValues::add_quantized(std::span<const std::vector<QuantizedWeight*>> by_unit,
                                 const mesh::Position& at, const param::Bucket& kind,
                                 const Residence& residence, Arena& arena) {
  const int ranks = at.size(kind.cut_axes());
  std::vector<Dim> sizes;  // bytes
  for (const auto& weights : by_unit) {
    Dim size = 0;
    for (const QuantizedWeight* weight : weights) size += bytes_of(*weight);
    sizes.push_back(ranks * layout::flat_range(size, ranks));
  }
  const std::vector<View> rooms =
      take_rooms(sizes, residence.present_rooms, arena, DType::u8, "present quantized matrices");
  const layout::Layout rests = in_format(of_bucket(kind, residence.value), DType::u8);
  const layout::Layout present = in_format(of_bucket(kind, residence.present), DType::u8);
  for (std::size_t i = 0; i < by_unit.size(); ++i) {
    const View& room = rooms[i];
    if (!room) continue;
    const Dim size = room.numel() / ranks;
    const View rest = arena.take(DType::u8, {size}, "quantized matrices");
    const Dim begin = at.at(kind.cut_axes()) * size;
    Cursor cursor(room);
    for (QuantizedWeight* weight : by_unit[i]) {
      const Dim from = cursor.used();
      weight->matrix = quantized_arrays(*weight, [&](DType dtype, const Shape& shape, const char*) {
        return cursor.take(dtype, shape);
      });
      weight->keep = [=, to = cursor.used()](Context& ctx) {
        keep(ctx, room, rest, begin, from, to);
      };
    }
    const auto unit = static_cast<int>(i);
    quantized_.add({unit, unit, room.raw(), kind.is_of_experts(), true,
                    std::make_unique<MovedValues>(rests, present, rest, room)});
  }
}

void FrozenValues::connect(const mesh::Mesh& mesh) {
  values_.connect(mesh);
  quantized_.connect(mesh);
}

void FrozenValues::before(Context& ctx, int unit, Order order) {
  values_.before(ctx, unit, order);
  quantized_.before(ctx, unit, order);
}

void FrozenValues::before(Context& ctx, int unit) {
  values_.before(ctx, unit);
  quantized_.before(ctx, unit);
}

void FrozenValues::changed(Context& ctx) {
  values_.all_changed(ctx);
  quantized_.all_changed(ctx);
  values_.wait_all(ctx);
  quantized_.wait_all(ctx);
}

std::vector<NamedMovement> FrozenValues::movements(int microbatches) const {
  std::vector<NamedMovement> all = values_.movements("frozen values", microbatches, false);
  for (NamedMovement& moved : quantized_.movements("quantized matrices", microbatches, false)) {
    all.push_back(std::move(moved));
  }
  return all;
}

}  // namespace hyperslab::sharding
