// SPDX-License-Identifier: Apache-2.0
// Bytes of a model in memory, and the formats of its matrices in words.
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

/// Bytes in memory.
struct Footprint {
  std::int64_t parameters = 0;  ///< all ranks' values, codes, adapters and padding; in
                                ///< training masters and buffers of dequantized matrices, too
  std::int64_t matrices = 0;    ///< all ranks' matrices of the blocks as they are stored, without
                                ///< masters, adapters and padding
  std::int64_t rank_peak = 0;   ///< arenas and workspace of the rank that takes most
};

/// The memory of the trainer's own rank.
[[nodiscard]] Footprint footprint(const Trainer& trainer);
/// The memory of the trainers of all ranks, replicas counted as often as they are held. Collective.
[[nodiscard]] Footprint footprint(comm::World& world, const Trainer& trainer);

/// Such as "int4 groups of 64" or "int8, dynamic-int8 activations"; "none" without the section.
[[nodiscard]] std::string quantization_text(const Config& config);
/// The storage of frozen matrices, such as "nf4" or "int4 groups of 64"; the precision, such as
/// "bf16", if as the run computes.
[[nodiscard]] std::string frozen_format_text(const Config& config);

}  // namespace hyperslab::train
