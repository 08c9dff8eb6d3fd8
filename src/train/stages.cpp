// SPDX-License-Identifier: Apache-2.0
#include "stages.hpp"

#include "hyperslab/model/transformer.hpp"
#include "hyperslab/pipeline/balance.hpp"

namespace hyperslab::train {
namespace {

std::vector<double> unit_costs(const model::ModelSpec& spec) {
  const model::Transformer transformer(spec, {});
  std::vector<double> costs;
  costs.reserve(static_cast<std::size_t>(transformer.units()));
  for (int unit = 0; unit < transformer.units(); ++unit) {
    costs.push_back(transformer.info(unit).cost);
  }
  return costs;
}

}  // namespace

std::vector<model::Chunk> cut_model(const Config& config, int global_stages) {
  std::vector<int> units;
  if (!config.parallel.stage_layers.empty()) {
    for (const std::int64_t layers : config.parallel.stage_layers) {
      units.push_back(static_cast<int>(layers));
    }
    ++units.front();  // the embedding
    ++units.back();   // the head
  } else {
    units = pipeline::balance(unit_costs(config.model), global_stages);
  }
  std::vector<model::Chunk> chunks;
  int first = 0;
  for (const int count : units) {
    chunks.push_back({first, count, 1});
    first += count;
  }
  return chunks;
}

std::vector<model::Chunk> chunks_of(const Config& config, const pipeline::Program& program,
                                    int pipeline_rank) {
  const std::vector<model::Chunk> all = cut_model(config, program.global_stages());
  std::vector<model::Chunk> mine;
  for (int chunk = 0; chunk < program.virtual_stages; ++chunk) {
    const int stage = program.global_stage(pipeline_rank, chunk);
    mine.push_back(all[static_cast<std::size_t>(stage)]);
    mine.back().slots = program.slot_count(pipeline_rank, chunk);
  }
  return mine;
}

void put_memory(const MemoryConfig& memory, model::StageOptions& stage) {
  stage.recompute = memory.recompute;
  stage.recompute_layers = static_cast<int>(memory.recompute_layers);
  stage.block_inputs = memory.activations;
  stage.host_layers = static_cast<int>(memory.host_layers);
  stage.loss_rows = memory.loss_rows;
  stage.mlp_rows = memory.mlp_rows;
}

}  // namespace hyperslab::train
