// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/presence.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rooms.hpp"

namespace hyperslab::sharding {
namespace {

/// Memory with an entry for every element that this rank holds in a layout.
param::StateView take(const param::ParamGroup& group, const layout::Layout& layout, Arena& arena,
                      DType dtype, const char* label) {
  const Dim size = is_flat(layout) ? group.shard_size() : group.flat_size();
  return {arena.take(dtype, {size}, label), is_flat(layout)};
}

}  // namespace

void Presence::allocate(param::ParamStore& store, const Memory& arenas, const DTypes& dtypes) {
  param::ParamGroup& trained = store.trained();
  const auto& [parameters, host, gradients] = arenas;
  const bool on_host = state_home() == Home::host;
  // Masters in the dtype of the values are the values, unless layers do not reach them.
  const bool own_values = on_host || dtypes.compute != dtypes.master;
  param::ParamGroup::Memory memory;
  memory.master = take(trained, own_values ? residence_.state : residence_.value,
                       on_host ? host : parameters, dtypes.master, "masters");
  memory.value = own_values ? take(trained, residence_.value, parameters, dtypes.compute, "values")
                            : memory.master;
  if (residence_.present_rooms > 0) {
    memory.present = take_rooms(trained, residence_.present_rooms, parameters, dtypes.compute,
                                "present values", [&](const param::Bucket& bucket) {
                                  return !bucket.gathers_fp8 && !trained.is_of_own_experts(bucket);
                                });
    keep_own_experts(trained, memory.value, memory.present);
  }
  if (gradients != nullptr) {
    memory.gradients = gradients_.allocate(trained, residence_, *gradients, dtypes.gradient);
  }
  trained.bind(std::move(memory));
  values_.allocate(store, residence_, gradients != nullptr ? &parameters : nullptr,
                   overlaps_updates_);
  if (param::ParamGroup& buffers = store.buffers(); !buffers.params().empty()) {
    buffers.bind({.master = {},
                  .value = take(buffers, {}, parameters, dtypes.master, "buffers"),
                  .gradients = {}});
  }
  frozen_.allocate(store, residence_, parameters, dtypes.compute);
  converted_.allocate(store, dequantized(gradients != nullptr), parameters, dtypes.compute);
}

void Presence::connect(const mesh::Mesh& mesh) {
  values_.connect(mesh);
  frozen_.connect(mesh);
  gradients_.connect(mesh);
}

void Presence::before(Context& ctx, int first, int last, Order order) {
  for (int unit = first; unit < last; ++unit) {
    values_.before(ctx, unit, order);
    frozen_.before(ctx, unit, order);
  }
}

std::vector<NamedMovement> Presence::movements(int microbatches) const {
  const int renewals = gradients_.reduces_every_microbatch() ? microbatches : 1;
  std::vector<NamedMovement> all = values_.movements(microbatches);
  std::ranges::move(frozen_.movements(microbatches), std::back_inserter(all));
  std::ranges::move(converted_.movements(microbatches, renewals, !values_.by_unit(false)),
                    std::back_inserter(all));
  std::ranges::move(gradients_.movements(microbatches), std::back_inserter(all));
  return all;
}

}  // namespace hyperslab::sharding
