// SPDX-License-Identifier: Apache-2.0
// How much training data there is for the steps of a run, and whether any of it counts.
#include <fmt/format.h>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "training_run.hpp"

namespace hyperslab::run {
namespace {

constexpr double kManyEpochs = 10;
constexpr int kMostWithoutTargets = 10;  // steps in a row

}  // namespace

void TrainingRun::report_data_amount() const {
  if (!is_first() || config_.train.overfit_one_batch) return;
  if (train_tokens_->description().starts_with("synthetic")) return;
  const std::int64_t samples = train_samples_->size();
  const std::int64_t batch = config_.train.global_batch;
  const double epochs =
      static_cast<double>(last_step_) * static_cast<double>(batch) / static_cast<double>(samples);
  const std::string amount = fmt::format(
      "{} steps of {} samples are {:.3g} epochs of the {} training samples ({} tokens "
      "each)",
      last_step_, batch, epochs, samples, config_.model.context);
  if (samples < batch) {
    log::warn(amount +
              "; a batch holds some samples more than once: give more data or a smaller "
              "train.global_batch");
  } else if (epochs > kManyEpochs) {
    log::warn(amount + "; the model sees every sample many times: give more data or fewer steps");
  } else {
    log::info(amount);
  }
}

void TrainingRun::check_targets(const ops::StepResult& result) {
  without_targets_in_a_row_ = result.tokens > 0 ? 0 : without_targets_in_a_row_ + 1;
  if (without_targets_in_a_row_ == 0) return;
  const std::string what = fmt::format(
      "no token of the batch of step {} counts as a target, so it has no loss and trains nothing; "
      "see data.ignore_token and data.loss_mask",
      result.step);
  if (without_targets_in_a_row_ > kMostWithoutTargets) {
    throw Error(ExitCode::data,
                fmt::format("{} steps in a row: {}", without_targets_in_a_row_, what))
        .on_all_ranks();
  }
  if (without_targets_in_a_row_ == 1 && is_first()) log::warn(what);
}

}  // namespace hyperslab::run
