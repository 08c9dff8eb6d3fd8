// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/initial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/resolution.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// Rank 0 chooses the step, so that all ranks take the same one: `step` of a directory of steps if
/// it is there and given, else the newest.
std::string chosen_folder(comm::World& world, const Config& config, std::int64_t step) {
  const std::string& initial = config.checkpoint.initial;
  std::string folder;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    try {
      const io::CheckpointReader newest(initial);
      folder = newest.folder();
      if (step == 0 || newest.meta().step == step) return;
      const std::string directory = std::filesystem::path(folder).parent_path().string();
      const std::vector<std::int64_t> steps = io::list_checkpoints(directory);
      const bool names_a_step =
          std::filesystem::path(initial).filename().string().starts_with("step_");
      if (!names_a_step && std::ranges::find(steps, step) != steps.end()) {
        folder = io::CheckpointReader(initial, step).folder();
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("checkpoint.initial: {}; {}", error.what(),
                              config.adapter
                                  ? "name the base of the adapters with --base (generate) or --set "
                                    "checkpoint.initial=DIR"
                                  : "give a step's folder or a directory of them, or null to start "
                                    "from random weights"));
    }
  });
  return world.broadcast(folder);
}

/// The sum of every rank's term of the fingerprint, in halves that doubles hold exactly.
std::uint64_t sum_of_terms(comm::World& world, std::uint64_t term) {
  constexpr int kHalf = 32;
  const auto half = [&](std::uint64_t part) {
    return static_cast<std::uint64_t>(world.sum(static_cast<double>(part)));
  };
  const std::uint64_t low = half(term & 0xFFFFFFFFULL);
  return (half(term >> kHalf) << kHalf) + low;
}

/// A quantized base must have the format that the deck stores bases in.
void require_format(const io::CheckpointReader& reader, const Config& config) {
  for (const char* table : {"model/embedding.token.weight.codes", "model/head.weight.codes"}) {
    if (!reader.tensors().contains(table)) continue;
    throw Error(
        ExitCode::checkpoint,
        reader.folder() +
            ": its embeddings or its head are quantized, for eval, generate, serve and bench; "
            "take the checkpoint that it was made of");
  }
  if (!io::is_quantized(reader) || config.model.frozen_format != param::StorageFormat::compute) {
    return;
  }
  throw Error(ExitCode::checkpoint,
              reader.folder() +
                  ": its matrices are quantized: set model.frozen_format to their "
                  "format (int8, or int4 in groups of 64), or take the checkpoint "
                  "that it was made of");
}

}  // namespace

void require_whole_model(const io::CheckpointReader& reader) {
  if (io::is_quantized(reader)) {
    throw Error(ExitCode::checkpoint,
                reader.folder() +
                    ": its matrices are quantized, for eval, generate and bench; take the "
                    "checkpoint that it was made of");
  }
  if (!reader.meta().base_fingerprint) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: it holds adapters alone; make a whole model of them with hyperslab "
                          "checkpoint merge, or take the deck that they were trained with",
                          reader.folder()));
}

void require_base(const io::CheckpointReader& reader, std::uint64_t found,
                  const std::string& base) {
  if (reader.meta().base_fingerprint == found) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: its adapters belong to another base: fingerprint {:016x}, that of "
                          "checkpoint.initial ({}) is {:016x}; name the base that they were "
                          "trained on",
                          reader.folder(), reader.meta().base_fingerprint.value_or(0),
                          base.empty() ? "null: random weights" : base, found));
}

namespace {

std::string resampled_text(Dim resolution, const model::ModelSpec& spec) {
  return fmt::format(", from {0} x {0} pixels to {1} x {1}{2}", resolution, spec.image.size,
                     spec.position == model::Position::learned ? ", positions resampled" : "");
}

constexpr std::string_view kClasses = "vocabulary=";  // of an identity

/// Refuses other classes, for models that differ at most in the size of their images.
void require_same_classes(const io::CheckpointReader& reader, const model::ModelSpec& spec) {
  auto differing = model::differing_choices(reader.meta().model, model::identity(spec));
  std::erase_if(differing, [](const auto& choice) { return choice.first.starts_with("image="); });
  if (differing.size() != 1 || !differing.front().first.starts_with(kClasses)) return;
  const std::string stored = differing.front().first.substr(kClasses.size());
  throw Error(
      ExitCode::checkpoint,
      fmt::format("{}: it has {} classes, and this model {}: set checkpoint.new_head to true for a "
                  "head of its own, or model.classes to {}",
                  reader.folder(), stored, differing.front().second.substr(kClasses.size()),
                  stored));
}

/// For a head of its own: the choices of the checkpoint's model with this one's classes.
std::string with_classes_of(const model::ModelSpec& spec, const std::string& stored) {
  std::string all = " " + stored + " ";
  for (const auto& [was, is] : model::differing_choices(stored, model::identity(spec))) {
    if (!was.starts_with(kClasses)) continue;
    all.replace(all.find(" " + was + " ") + 1, was.size(), is);
  }
  return all.substr(1, all.size() - 2);
}

/// `step`: of a directory of checkpoints; 0: the newest.
void start_from_step(comm::World& world, const Config& config, Trainer& trainer,
                     std::int64_t step) {
  if (config.checkpoint.initial.empty()) return;
  const std::string folder = chosen_folder(world, config, step);
  std::uint64_t term = 0;
  std::int64_t found = 0;
  comm::agree(world, [&] {
    const Pause pause(world.activity(), "loading initial values");
    io::CheckpointReader reader(folder);
    const bool new_head = config.checkpoint.new_head;
    if (new_head) {
      reader.set_model(with_classes_of(config.model, reader.meta().model));
    } else if (config.model.is_of_images()) {
      require_same_classes(reader, config.model);
    }
    const Dim resolution = fit_resolution(reader, config.model);
    // Adapters may have a quantized base, if model.frozen_format is theirs.
    if (!config.adapter || !io::is_quantized(reader)) require_whole_model(reader);
    require_format(reader, config);
    found = reader.meta().step;
    trainer.state().load_parameters(reader);  // which names every tensor of another shape
    const std::string positions =
        require_same_weights(reader.meta(), config.model, reader.folder());
    if (config.adapter) require_same_model(reader.meta(), config.model, reader.folder());
    if (config.adapter) term = io::parameter_fingerprint(reader, world.rank(), world.size());
    if (world.rank() == 0) {
      log::info(fmt::format("{} the weights of {} (step {}, {}){}{}{}",
                            config.adapter ? "adapters are added to" : "starts from",
                            reader.folder(), reader.meta().step, reader.meta().layout,
                            resolution == 0 ? "" : resampled_text(resolution, config.model),
                            new_head ? ", with a new head" : "",
                            positions.empty() ? "" : ", with other positions: " + positions));
    }
  });
  if (config.adapter) trainer.state().set_base(sum_of_terms(world, term), found);
  trainer.state().share_values();
}

}  // namespace

void start_from_initial(comm::World& world, const Config& config, Trainer& trainer) {
  start_from_step(world, config, trainer, 0);
}

void load_base(comm::World& world, const Config& config, Trainer& trainer, std::int64_t step) {
  if (config.adapter) start_from_step(world, config, trainer, step);
}

void require_loadable(const io::CheckpointReader& reader, const Config& config,
                      const Trainer& trainer) {
  if (!config.adapter) {
    if (!config.quantization) require_whole_model(reader);
  } else if (!reader.meta().base_fingerprint) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: it holds a whole model, and the deck has adapters; name it in "
                            "checkpoint.initial to tune it, or set adapter.rank to 0",
                            reader.folder()));
  } else {
    require_base(reader, trainer.state().base_fingerprint(), config.checkpoint.initial);
  }
}

}  // namespace hyperslab::train
