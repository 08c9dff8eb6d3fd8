// SPDX-License-Identifier: Apache-2.0
#include "planned.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"

namespace hyperslab::cli {
namespace {

/// A deck as one machine reads it.
struct Reading {
  train::Config config;
  std::string cuts;      ///< to fit overrides
  std::string problems;  ///< a line each; empty: none
};

Reading read_for(const deck::Surroundings& surroundings, const std::string& text,
                 const DeckSource& source) {
  Reading reading;
  try {
    reading.config =
        deck::read_deck(text, source.path, source.overrides, surroundings, &reading.cuts);
  } catch (const Error& error) {
    reading.problems = error.what();
  }
  return reading;
}

/// The deck as a machine with a GPU would read it.
Reading read_for_cuda(deck::Surroundings surroundings, const std::string& text,
                      const DeckSource& source) {
  surroundings.has_cuda_device = true;
  surroundings.has_cuda_build = true;
  return read_for(surroundings, text, source);
}

auto lines_in(const std::string& text) { return std::ranges::count(text, '\n'); }

/// A plan, which starts nothing here, of a deck in 16 bits that leaves the device open: runs in 16
/// bits are meant for GPUs.
bool is_meant_for_cuda(const train::Config& config, const DeckSource& source,
                       const deck::Surroundings& here) {
  return source.is_plan && !here.has_cuda_device &&
         config.run.device == train::DeviceChoice::automatic &&
         config.precision.compute == Precision::bf16;
}

std::string why_cuda(const train::Config& config) {
  if (config.run.device == train::DeviceChoice::cuda) return "run.device is cuda";
  const Precision precision = config.precision.compute;
  if (precision == Precision::tf32 || precision == Precision::fp16) {
    return fmt::format("{} needs a GPU", name_of(precision));
  }
  return "model.attention needs a GPU";
}

}  // namespace

train::Config read_planned_config(comm::World& world, const DeckSource& source) {
  if (!source.device.empty()) return read_config(world, source);
  const std::string text = read_deck_text(world, source.path);
  const deck::Surroundings here = surroundings_of(world, source);
  Reading reading = read_for(here, text, source);
  if (!reading.problems.empty()) {
    // If a GPU takes a problem away, the deck is meant for one, whatever else is wrong with it.
    Reading cuda = read_for_cuda(here, text, source);
    const bool for_cuda =
        cuda.problems.empty() || lines_in(cuda.problems) < lines_in(reading.problems);
    if (for_cuda) reading = std::move(cuda);
    if (!reading.problems.empty()) throw Error(ExitCode::usage, reading.problems).on_all_ranks();
    if (world.rank() == 0) {
      fmt::print("{}planned for cuda, since {}; there is no GPU here\n", source.is_yaml ? "# " : "",
                 why_cuda(reading.config));
    }
    reading.config.run.device = train::DeviceChoice::cuda;
  } else if (is_meant_for_cuda(reading.config, source, here)) {
    reading = read_for_cuda(here, text, source);
    if (!reading.problems.empty()) throw Error(ExitCode::usage, reading.problems).on_all_ranks();
    if (world.rank() == 0) {
      fmt::print(
          "planned for cuda, as the deck computes in bf16; there is no GPU here: --device cpu "
          "plans "
          "CPU ranks\n");
    }
    reading.config.run.device = train::DeviceChoice::cuda;
  }
  if (!reading.cuts.empty()) log::info("to fit --set: " + reading.cuts);
  return reading.config;
}

Device planned_device(const train::Config& config) {
  switch (config.run.device) {
    case train::DeviceChoice::cpu: return Device::cpu;
    case train::DeviceChoice::cuda: return Device::cuda;
    case train::DeviceChoice::automatic: break;
  }
  return cuda_device_count() > 0 ? Device::cuda : Device::cpu;
}

train::TrainerOptions planned_options(const train::Config& config) {
  train::Config elsewhere = config;  // no GPU is touched, whether there is one or not
  elsewhere.run.device = train::DeviceChoice::cpu;
  train::TrainerOptions options = train::trainer_options(elsewhere, 0, true);
  options.device = planned_device(config);
  return options;
}

}  // namespace hyperslab::cli
