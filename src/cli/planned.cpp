// SPDX-License-Identifier: Apache-2.0
#include "planned.hpp"

#include <fmt/format.h>

#include <optional>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::cli {
namespace {

/// The deck as a machine with a GPU would read it; nothing where it is wrong there, too.
std::optional<train::Config> read_for_cuda(const std::string& text, const DeckSource& source,
                                           deck::Surroundings surroundings) {
  surroundings.has_cuda_device = true;
  surroundings.has_cuda_build = true;
  try {
    return deck::read_deck(text, source.path, source.overrides, surroundings);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string why_cuda(const train::Config& config) {
  if (config.run.device == "cuda") return "run.device is cuda";
  if (config.precision.compute != "fp32") return config.precision.compute + " needs a GPU";
  return "model.attention needs a GPU";
}

}  // namespace

train::Config read_planned_config(comm::World& world, const DeckSource& source) {
  if (!source.device.empty()) return read_config(world, source);
  const std::string text = read_deck_text(world, source.path);
  const deck::Surroundings here = surroundings_of(world, source);
  try {
    return deck::read_deck(text, source.path, source.overrides, here);
  } catch (const Error& error) {
    auto config = read_for_cuda(text, source, here);
    if (!config) throw error.on_all_ranks();
    if (world.rank() == 0) {
      fmt::print("planned for cuda, since {}; there is no GPU here\n", why_cuda(*config));
    }
    config->run.device = "cuda";
    return *config;
  }
}

Device planned_device(const train::Config& config) {
  if (config.run.device == "auto") return cuda_device_count() > 0 ? Device::cuda : Device::cpu;
  return config.run.device == "cuda" ? Device::cuda : Device::cpu;
}

train::TrainerOptions planned_options(const train::Config& config) {
  train::Config elsewhere = config;  // no GPU is touched, whether there is one or not
  elsewhere.run.device = "cpu";
  train::TrainerOptions options = train::trainer_options(elsewhere, 0, true);
  options.device = planned_device(config);
  return options;
}

}  // namespace hyperslab::cli
