// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/optim/config.hpp"

namespace hyperslab::optim {

/// Learning rate of `step` (from 1) of `total_steps`: lr * step / warmup_steps while warming up, so
/// that the last step of the warm-up has lr, also if it is the last of all; then, by name,
/// - constant: lr;
/// - linear: straight to final_fraction * lr at the last step;
/// - cosine: half a cosine to the same (Loshchilov & Hutter 2017, eq. 5);
/// - wsd: lr, then straight to the same over the last decay_fraction of all steps (Hu et al. 2024).
[[nodiscard]] double learning_rate(const ScheduleConfig& schedule, double lr, std::int64_t step,
                                   std::int64_t total_steps);

}  // namespace hyperslab::optim
