// SPDX-License-Identifier: Apache-2.0
// Initial values: a function of (seed, name, global element index).
#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/param/store.hpp"

namespace hyperslab::param {
namespace {

/// `values`: a part of the parameter.
void initialize_param(Context& ctx, const Param& param, const Hyperslab& part, std::uint64_t seed,
                      View values) {
  if (param.init == Init::zeros) return;
  if (param.init == Init::ones) return ops::fill(ctx, 1, values);
  const bool matrix = param.global_shape.rank() == 2;
  const Dim width = param.global_shape.dims().back();
  const auto first = static_cast<std::uint64_t>(first_element(part, param.global_shape));
  ops::fill_normal(ctx, {seed, name_hash(param.name), param.init_std}, first,
                   static_cast<std::uint64_t>(width),
                   values.reshaped({matrix ? part.count[0] : 1, part.count.back()}));
}

/// `masters`: of the bucket's elements, f32 or f64.
void initialize_bucket(Context& ctx, const ParamGroup& group, const Bucket& bucket,
                       std::uint64_t seed, View masters) {
  ops::fill(ctx, 0, masters);
  for (const Param* param : group.params()) {
    if (!bucket.contains(*param)) continue;
    initialize_param(ctx, *param, param->part, seed,
                     masters.slice(param->flat_begin - bucket.begin, param->numel()));
  }
}

}  // namespace

void initialize(Context& ctx, const ParamGroup& group, std::uint64_t seed) {
  const DType wide = group.value().data.dtype() == DType::f64 ? DType::f64 : DType::f32;
  for (const Bucket& bucket : group.buckets()) {
    const ElementRange all = {bucket.begin, 0, bucket.size()};
    const ElementRange mine = group.shard(bucket);
    const auto range_in = [&](const StateView& state) { return state.sharded ? mine : all; };
    const StateView& wide_state = group.master() ? group.master() : group.value();
    const bool in_place = !wide_state.sharded && wide_state.data.dtype() == wide;
    Tensor whole;
    if (!in_place) whole = Tensor(ctx.device(), wide, {bucket.size()});
    const View masters = in_place ? wide_state.at(all) : whole.view();
    initialize_bucket(ctx, group, bucket, seed, masters);
    for (const StateView& state : {group.master(), group.value()}) {
      if (!state) continue;
      const ElementRange range = range_in(state);
      const View from = masters.slice(range.in_flat - bucket.begin, range.size);
      const View to = state.at(range);
      if (from.raw() != to.raw()) ops::cast(ctx, from, to);
    }
    synchronize(ctx);  // before `whole` goes
  }
}

void initialize_quantized(Context& ctx, const ParamStore& store, std::uint64_t seed) {
  for (const QuantizedWeight& weight : store.quantized_weights()) {
    if (!weight.frozen) continue;
    weight.for_rounded_rows([&](Dim first, Dim count) {
      Tensor values(ctx.device(), DType::f32, {count, weight.rounded_shape()[1]});
      ops::fill(ctx, 0, values.view());
      for (const auto& [member, part, at] : weight.members_in(first, count)) {
        initialize_param(ctx, *member, part, seed, values.view().slice(at, part.count[0]));
      }
      weight.round(ctx, values.view(), first);
      synchronize(ctx);  // before `values` goes
    });
    weight.filled(ctx);
  }
}

}  // namespace hyperslab::param
