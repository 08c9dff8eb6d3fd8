// SPDX-License-Identifier: Apache-2.0
#include "inject_fault.hpp"

#include <limits>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::train {
namespace {

void flip_middle(Context& ctx, const View& values) {
  if (!values || ctx.device() == Device::meta) return;
  const View one = values.slice(values.numel() / 2, 1);
  const PinnedBuffer buffer(ctx.device(), one.bytes());
  const View host(buffer.data(), one.dtype(), Device::cpu, one.shape());
  copy(ctx, one, host);
  synchronize(ctx);
  auto* bytes = static_cast<unsigned char*>(buffer.data());
  switch (one.bytes()) {
    case 1: bytes[0] ^= 0x04U; break;  // e4m3
    case 2: bytes[0] ^= 0x40U; break;  // bf16
    case 4: bytes[2] ^= 0x40U; break;
    default: bytes[6] ^= 0x08U; break;
  }
  copy(ctx, host, one);
  synchronize(ctx);
}

}  // namespace

void inject_gradient_fault(Context& ctx, const sharding::GradientSums& gradients) {
  if (ctx.device() == Device::meta || !fault::corrupts("step.gradients")) return;
  for (const View& gradient : gradients.norm_views()) {
    if (gradient.numel() == 0) continue;
    // The gaps between tensors, which are never written again, stay finite.
    ops::fill(ctx, std::numeric_limits<float>::quiet_NaN(), gradient.slice(0, 1));
  }
}

void inject_parameter_fault(Context& ctx, sharding::PresentValues& values,
                            const param::ParamStore& params) {
  if (ctx.device() == Device::meta || !fault::corrupts("step.parameters")) return;
  values.wait_all(ctx);
  for (const param::KeptFp8& gathered : params.kept_fp8()) {
    if (gathered.values) flip_middle(ctx, gathered.values.flat());
  }
  const param::ParamGroup& trained = params.trained();
  flip_middle(ctx, trained.value().data);
  if (trained.has_own_values()) flip_middle(ctx, trained.master().data);
}

}  // namespace hyperslab::train
