// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "draws.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/image/augment.hpp"

namespace hyperslab::image {
namespace {

/// The box in which the partner shows: a box of the share 1 - weight around a random middle, cut
/// off at the edges (Yun et al. 2019, section 3; torchvision's CutMix).
ops::ImageBox cut_of(double weight, Dim size, Draws& draws) {
  const auto middle_x = static_cast<double>(draws.below(size));
  const auto middle_y = static_cast<double>(draws.below(size));
  const double half = std::trunc(0.5 * std::sqrt(1.0 - weight) * static_cast<double>(size));
  const auto most = static_cast<double>(size);
  const double left = std::max(middle_x - half, 0.0);
  const double top = std::max(middle_y - half, 0.0);
  return {.left = static_cast<std::int32_t>(left),
          .top = static_cast<std::int32_t>(top),
          .width = static_cast<std::int32_t>(std::min(middle_x + half, most) - left),
          .height = static_cast<std::int32_t>(std::min(middle_y + half, most) - top)};
}

}  // namespace

Mixing draw_mixing(const AugmentConfig& config, std::uint64_t seed, std::uint64_t index,
                   std::uint64_t global_batch, Dim size) {
  const bool pairs = config.mix_mode == MixMode::pair;
  const std::uint64_t members = pairs ? 2 : global_batch;
  const std::uint64_t group = index / members;
  Draws draws(seed, pairs ? "mix" : "mix batch", pairs ? 2 * group : group);
  if (!config.mixes() || !draws.chance(config.mix)) return {};
  const bool both = config.mixup > 0 && config.cutmix > 0;
  const bool cuts = both ? draws.chance(config.mix_switch) : config.cutmix > 0;
  Mixing out;
  out.kind = cuts ? ops::ImageMix::cutmix : ops::ImageMix::mixup;
  out.weight = static_cast<float>(draws.beta(cuts ? config.cutmix : config.mixup));
  if (cuts) {
    out.cut = cut_of(out.weight, size, draws);
    const auto area = static_cast<double>(out.cut.width) * out.cut.height;
    out.weight = static_cast<float>(1.0 - area / static_cast<double>(size * size));
  }
  out.partner = pairs ? index ^ 1
                      : group * members + permuted_index(index % members, members,
                                                         seed ^ name_hash("mix partner"), group);
  return out;
}

}  // namespace hyperslab::image
