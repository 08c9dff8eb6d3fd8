// SPDX-License-Identifier: Apache-2.0
// The cut of a model along the pipeline, and settings of its stages.
#pragma once

#include <vector>

#include "hyperslab/model/stage.hpp"
#include "hyperslab/pipeline/schedule.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

/// Blocks of every global stage of the pipeline: as parallel.stage_layers says, or the cut whose
/// most costly stage takes the fewest FLOPs, the head and its loss counted.
[[nodiscard]] std::vector<model::Chunk> cut_model(const Config& config, int global_stages);

/// The chunks that rank `pipeline_rank` holds, with the slots that the program asks for.
[[nodiscard]] std::vector<model::Chunk> chunks_of(const Config& config,
                                                  const pipeline::Program& program,
                                                  int pipeline_rank);

/// Settings of a stage that deck section `memory` decides.
void put_memory(const MemoryConfig& memory, model::StageOptions& stage);

}  // namespace hyperslab::train
