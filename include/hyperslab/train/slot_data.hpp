// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <variant>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::train {

/// The slots keep their present data: benches, warm-up, plans.
struct KeptData {};
/// The loader's microbatches of a step: training.
struct LoadedData {
  std::reference_wrapper<io::Loader> loader;
};
/// Microbatch `chunk` of the first `count` samples: evaluation.
struct SampledData {
  std::reference_wrapper<const io::Samples> samples;
  std::int64_t chunk = 0;
  std::int64_t count = 0;
  std::int64_t stride = 1;  ///< this rank's next chunk is so many further
};
/// The data that go into a slot before its forward pass.
using SlotData = std::variant<KeptData, LoadedData, SampledData>;

}  // namespace hyperslab::train
