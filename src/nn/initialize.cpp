// SPDX-License-Identifier: Apache-2.0
// Initial values: a function of (seed, name, global element index).
#include "hyperslab/core/philox.hpp"
#include "hyperslab/nn/param.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::nn {
namespace {

/// `values`: this rank's part of the parameter.
void initialize_param(Context& ctx, const Param& param, std::uint64_t seed, View values) {
  if (param.init == Init::zeros) return;
  if (param.init == Init::ones) return ops::fill(ctx, 1, values);
  const bool matrix = param.global_shape.rank() == 2;
  const Dim width = param.global_shape.dims().back();
  const Dim row = matrix ? param.offset[0] : 0;
  const auto first = static_cast<std::uint64_t>(row * width + param.offset.back());
  ops::fill_normal(ctx, {seed, name_hash(param.name), param.init_std}, first,
                   static_cast<std::uint64_t>(width),
                   values.reshaped({matrix ? param.count[0] : 1, param.count.back()}));
}

}  // namespace

void initialize(Context& ctx, const ParamTable& table, const Bucket& bucket, std::uint64_t seed,
                View masters) {
  ops::fill(ctx, 0, masters);
  for (const Param& param : table.params()) {
    if (param.flat_begin < bucket.begin || param.flat_begin >= bucket.end) continue;
    initialize_param(ctx, param, seed,
                     masters.slice(param.flat_begin - bucket.begin, param.numel()));
  }
}

}  // namespace hyperslab::nn
