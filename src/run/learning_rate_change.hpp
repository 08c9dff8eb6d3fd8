// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/train/config.hpp"

namespace hyperslab::run {

/// "step 21 has a learning rate of 0.0055, by the deck of step 20 it was 0.001 (train.steps 20 ->
/// 40)": the step after `step`, if a key of the schedule differs from that of `earlier_deck`, the
/// one of a checkpoint. Empty: the rate is the same. `config` is that of `deck`.
[[nodiscard]] std::string learning_rate_change(const std::string& earlier_deck,
                                               const std::string& deck, const train::Config& config,
                                               std::int64_t step, std::int64_t samples_per_epoch);

}  // namespace hyperslab::run
