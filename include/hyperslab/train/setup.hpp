// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "hyperslab/comm/watchdog.hpp"
#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/batch.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

/// Watches the ranks of `world`, laid out as the deck says, with its timeout; collective. To be
/// destroyed after everything that communicates.
[[nodiscard]] comm::Watchdog watch(comm::World& world, const Config& config);

/// The groups that a deck asks for, over the ranks of `world`; collective. With run.deterministic
/// they add in a fixed order.
[[nodiscard]] std::unique_ptr<mesh::Mesh> make_mesh(comm::World& world, const Config& config,
                                                    Device device);

/// Throws Error(checkpoint) if the checkpoint holds another model than `spec`; names the choices
/// that differ. `where`: of the checkpoint, for the message.
void require_same_model(const io::CheckpointMeta& meta, const model::ModelSpec& spec,
                        const std::string& where);
/// Likewise, but rotary positions may differ, which have no parameters: a deck extends the context
/// of a model by them. Returns how they do, "rope_scaling=default here rope_scaling=yarn, ...";
/// empty: they are the same.
[[nodiscard]] std::string require_same_weights(const io::CheckpointMeta& meta,
                                               const model::ModelSpec& spec,
                                               const std::string& where);

/// The first rank logs how many threads ranks have, and why, and warns of too many.
void report_threads(const comm::World& world);

/// model::flops_per_token of the deck's training: with adapters 4 N in place of 6 N, as frozen
/// weights have no gradients. The adapters' own are not counted, as recomputation is not.
[[nodiscard]] double flops_per_token(const Config& config, Dim T, bool causal);
[[nodiscard]] double flops_per_token(const Config& config, Dim T, const KeyShares& documents);

/// Steps of the run: the deck's, or the steps of its epochs over so many samples.
[[nodiscard]] std::int64_t total_steps(const Config& config, std::int64_t samples_per_epoch);

/// Samples that a validation takes from the front of the `available` ones: train.validate_batches
/// of train.global_batch each, so that microbatch and layout play no part; 0 batches: all.
[[nodiscard]] std::int64_t validation_samples(const Config& config, std::int64_t available);

}  // namespace hyperslab::train
