// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "batch_feed.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/train/trainer.hpp"
#include "step_records.hpp"

namespace hyperslab::train {
namespace {

/// Microbatch `chunk` of samples [0, count); places beyond the end do not count.
void fill(const io::Microbatch& batch, const io::Samples& samples, std::int64_t chunk,
          std::int64_t count) {
  const auto [B, T] = batch.tokens.dims<2>("tokens");
  for (Dim b = 0; b < B; ++b) {
    const auto tokens = batch.tokens.slice(b, 1).span<std::int32_t>();
    const auto targets = batch.targets.slice(b, 1).span<std::int32_t>();
    if (chunk * B + b < count) {
      samples.read(chunk * B + b, tokens, targets);
    } else {
      std::ranges::fill(tokens, 0);
      std::ranges::fill(targets, ops::kIgnoredTarget);
    }
  }
}

}  // namespace

Evaluation Trainer::evaluate(const io::Samples& samples, std::int64_t count, comm::World& world) {
  const std::int64_t chunks = (count + microbatch() - 1) / microbatch();
  Evaluation mine;
  for (std::int64_t chunk = mesh_.at().data; chunk < chunks; chunk += config_.parallel.data) {
    fill(feed_->next(), samples, chunk, count);
    feed_->upload(*ctx_);
    ops::begin_step(*ctx_, input_, records_->state(), records_->sums());
    for (int unit = 0; unit < stage_.units(); ++unit) {
      stage_.forward(*ctx_, 0, unit, model::Pass::evaluate, step_views(), nn::Accumulate::no);
    }
    // Summed in double on the host, so that the number does not depend on the layout.
    const auto sums = records_->read_sums();
    mine.loss_sum += sums[ops::kSumLoss];
    mine.tokens += sums[ops::kSumTokens];
    mine.correct += sums[ops::kSumCorrect];
  }
  return {world.sum(mine.loss_sum), world.sum(mine.tokens), world.sum(mine.correct)};
}

}  // namespace hyperslab::train
