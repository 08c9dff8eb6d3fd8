// SPDX-License-Identifier: Apache-2.0
// Functions that several files of rules call, and the lists of rules by subject.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "hyperslab/core/driver.hpp"
#include "hyperslab/deck/deck.hpp"

namespace hyperslab::deck {

/// Only for rules whose `holds` has found the sizes positive.
[[nodiscard]] inline bool divides(std::int64_t divisor, std::int64_t number) {
  return divisor > 0 && number % divisor == 0;
}

[[nodiscard]] inline bool on_gpu(const train::Config& c, const Surroundings& s) {
  return c.run.device == train::DeviceChoice::cuda ||
         (c.run.device == train::DeviceChoice::automatic && s.has_cuda_build && s.has_cuda_device);
}

/// Why a GPU that was asked for is not used, and what to do.
[[nodiscard]] inline std::string no_device() {
  const std::string problem = cuda_driver_problem();
  return problem.empty() ? "no CUDA device was found: set run.device to cpu or auto"
                         : problem + ", or set run.device to cpu";
}

[[nodiscard]] inline std::int64_t required_ranks(const train::Config& c) {
  return std::int64_t{c.parallel.data} * c.parallel.tensor * c.parallel.pipeline *
         c.parallel.context;
}

/// Samples that all ranks take in one round of microbatches.
[[nodiscard]] inline std::int64_t batch_unit(const train::Config& c) {
  return c.parallel.data * std::max<std::int64_t>(1, c.train.microbatch);
}
/// The numbers next to the deck's that train.global_batch can be: multiples of the unit, and with
/// schedule interleaved of as many as there are pipeline ranks.
[[nodiscard]] std::string nearest_batch(const train::Config& c);

/// The numbers of heads next to the deck's that divide model.width and, with rope, leave a head
/// pairs to turn. "0": there are none.
[[nodiscard]] std::string nearest_heads(const train::Config& c);

/// Steps of the decay at the end of a wsd schedule.
[[nodiscard]] inline std::int64_t decay_steps(const train::Config& c) {
  return std::llround(c.schedule.decay_fraction * static_cast<double>(c.train.steps));
}

/// Rules of deck section `parallel`.
[[nodiscard]] std::span<const Rule> layout_rules();
/// Rules of samples whose tokens lie on several ranks.
[[nodiscard]] std::span<const Rule> context_rules();
/// Rules of deck sections `adapter` and `quantization`, and of model.frozen_format.
[[nodiscard]] std::span<const Rule> adapter_rules();
/// Rules of deck section `parallel` and of mixtures of experts.
[[nodiscard]] std::span<const Rule> experts_layout_rules();
/// Rules of mixtures of experts.
[[nodiscard]] std::span<const Rule> experts_rules();
/// Rules of models of images, and of deck section `augment`.
[[nodiscard]] std::span<const Rule> image_rules();
/// Rules of mixtures of training data.
[[nodiscard]] std::span<const Rule> mixture_rules();
/// Rules of deck section `precision`.
[[nodiscard]] std::span<const Rule> precision_rules();
/// Rules of deck section `memory`.
[[nodiscard]] std::span<const Rule> memory_rules();
/// Rules of rotary positions.
[[nodiscard]] std::span<const Rule> rope_rules();
/// Rules of documents in samples of text.
[[nodiscard]] std::span<const Rule> document_rules();
/// Rules of texts that a model generates while it trains.
[[nodiscard]] std::span<const Rule> sample_rules();
/// Rules of the maximal update parametrization.
[[nodiscard]] std::span<const Rule> mup_rules();
/// Rules of windows and scores of attention.
[[nodiscard]] std::span<const Rule> loss_rules();
[[nodiscard]] std::span<const Rule> score_rules();

}  // namespace hyperslab::deck
