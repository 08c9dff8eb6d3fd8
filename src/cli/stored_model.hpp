// SPDX-License-Identifier: Apache-2.0
// The model of a checkpoint for a command that continues texts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "command.hpp"
#include "hyperslab/comm/watchdog.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

/// A command takes the checkpoint of --checkpoint, or also that of a run that goes on, --follow.
enum class ModelSource : std::uint8_t { checkpoint, checkpoint_or_run };

/// --checkpoint, --base, --vocab and --ema, and --follow if `source` says so.
void add_stored_model_options(Arguments& args, ModelSource source = ModelSource::checkpoint);

/// --cache-tokens and --keep-cache.
void add_cache_options(Arguments& args);
/// --cache-tokens: its value, at least 1, or 0: as many as texts can need.
[[nodiscard]] Dim cache_tokens(const Arguments& args);
/// --keep-cache; absent: as GeneratorSize has it.
[[nodiscard]] std::optional<model::Generation> generation_of(const Arguments& args);
/// A line on the memory that the generator has for keys and values.
void log_cache(const generate::Generator& generator);

/// --draft and --draft-checkpoint.
void add_draft_options(Arguments& args);
/// --draft: its value, or 0. Throws Error(usage) for a value that it cannot have, and for
/// --draft-checkpoint without it.
[[nodiscard]] Dim draft_tokens(const Arguments& args);
/// A line on the drafts of a generator that makes any.
void log_drafts(const Arguments& args, const generate::Generator& generator);
/// "12 passes; drafts: 40 tokens, 30 accepted (75.0 %)"
[[nodiscard]] std::string describe(const generate::GenerateStats& stats);

struct StoredModel {
  io::CheckpointReader reader;
  train::Config config;
  std::string vocabulary;  ///< path of the tokenizer's
  std::unique_ptr<io::Tokenizer> tokenizer;
  io::TextEnds ends;  ///< by the vocabulary's files and model.eos_tokens
};

/// The model that these options name, for the ranks of the world as one tensor group. Rank 0 logs
/// the changes that fit it to this machine. `special`: for the tokenizer. Collective. Throws, on
/// all ranks alike, Error(usage) for a model of images, one that so many ranks cannot share, and a
/// checkpoint without a vocabulary; Error(data) and Error(checkpoint) for missing or damaged files.
[[nodiscard]] StoredModel open_stored_model(comm::World& world, const Arguments& args,
                                            io::SpecialTokens special);

/// The model of --draft-checkpoint; absent: none was given. Collective. Throws as
/// open_stored_model() does, and Error(usage) for a vocabulary that is not that of `model`.
[[nodiscard]] std::optional<StoredModel> open_draft_model(comm::World& world, const Arguments& args,
                                                          const StoredModel& model);
/// For a generator; the model must outlive it.
[[nodiscard]] generate::DraftSource draft_source(const std::optional<StoredModel>& model);

/// Watches several ranks that generate; one alone is not watched.
[[nodiscard]] comm::WatchdogOptions watch_options(const comm::World& world,
                                                  const train::Config& config);

}  // namespace hyperslab::cli
