// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hyperslab::optim {
namespace {

/// 0 up to `from`, even where nothing follows it, 1 at `to` and later.
double progress(double step, double from, double to) {
  if (step <= from) return 0;
  return to > from ? std::min((step - from) / (to - from), 1.0) : 1.0;
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, double lr, std::int64_t step,
                     std::int64_t total_steps) {
  const auto now = static_cast<double>(step);
  const auto last = static_cast<double>(total_steps);
  const auto warm = static_cast<double>(schedule.warmup_steps);
  if (step < schedule.warmup_steps) return lr * now / warm;
  const double low = lr * schedule.final_fraction;
  if (schedule.name == ScheduleKind::linear) return lr + (low - lr) * progress(now, warm, last);
  if (schedule.name == ScheduleKind::cosine) {
    const double x = progress(now, warm, last);
    return low + 0.5 * (lr - low) * (1.0 + std::cos(std::numbers::pi * x));
  }
  if (schedule.name == ScheduleKind::wsd) {
    const double start = std::max(warm, last * (1.0 - schedule.decay_fraction));
    return now <= start ? lr : lr + (low - lr) * progress(now, start, last);
  }
  return lr;
}

}  // namespace hyperslab::optim
