// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::train {

/// The slots keep what they hold: benches, warm-up, plans.
struct KeptTokens {};
/// The loader's microbatches of a step: training.
struct LoadedTokens {
  std::reference_wrapper<io::Loader> loader;
};
/// Microbatch `chunk` of the first `count` samples: evaluation.
struct SampledTokens {
  std::reference_wrapper<const io::Samples> samples;
  std::int64_t chunk = 0;
  std::int64_t count = 0;
};
/// What goes into a slot before its forward pass.
using SlotTokens = std::variant<KeptTokens, LoadedTokens, SampledTokens>;

}  // namespace hyperslab::train
