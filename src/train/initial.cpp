// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/initial.hpp"

#include <fmt/format.h>

#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {
namespace {

/// Rank 0 chooses the step, so that all ranks take the same one.
std::string chosen_folder(comm::World& world, const std::string& initial) {
  std::string folder;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    try {
      folder = io::CheckpointReader(initial).folder();
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("checkpoint.initial: {}; give a step's folder or a directory of "
                              "them, or null to start from random weights",
                              error.what()));
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

}  // namespace

void require_whole_model(const io::CheckpointReader& reader) {
  if (io::is_quantized(reader)) {
    throw Error(ExitCode::checkpoint,
                reader.folder() +
                    ": its matrices are in few bits, for eval, generate and bench; take the "
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

void start_from_initial(comm::World& world, const Config& config, Trainer& trainer) {
  if (config.checkpoint.initial.empty()) return;
  const std::string folder = chosen_folder(world, config.checkpoint.initial);
  std::uint64_t term = 0;
  comm::agree(world, [&] {
    const Pause pause(world.activity());
    const io::CheckpointReader reader(folder);
    // Adapters may have a base in few bits, if model.frozen_format is theirs.
    if (!config.adapter || !io::is_quantized(reader)) require_whole_model(reader);
    trainer.load_parameters(reader);  // which names every tensor of another shape
    require_same_model(reader.meta(), config.model, reader.folder());
    if (config.adapter) term = io::parameter_fingerprint(reader, world.rank(), world.size());
    if (world.rank() == 0) {
      log::info(fmt::format("{} the weights of {} (step {}, {})",
                            config.adapter ? "adapters are added to" : "starts from",
                            reader.folder(), reader.meta().step, reader.meta().layout));
    }
  });
  if (config.adapter) trainer.set_base_fingerprint(sum_of_terms(world, term));
  trainer.share_values();
}

void load_base(comm::World& world, const Config& config, Trainer& trainer) {
  if (config.adapter) start_from_initial(world, config, trainer);
}

void require_loadable(const io::CheckpointReader& reader, const Config& config,
                      const Trainer& trainer) {
  const io::CheckpointMeta& meta = reader.meta();
  if (!config.adapter) {
    if (!config.quantization) require_whole_model(reader);
  } else if (!meta.base_fingerprint) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: it holds a whole model, and the deck has adapters; name it in "
                            "checkpoint.initial to tune it, or set adapter.rank to 0",
                            reader.folder()));
  } else {
    require_base(reader, trainer.base_fingerprint(), config.checkpoint.initial);
  }
  require_same_model(meta, config.model, reader.folder());
}

}  // namespace hyperslab::train
