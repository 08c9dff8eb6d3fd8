// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/train/trainer.hpp"
#include "stage_worker.hpp"
#include "step_records.hpp"

namespace hyperslab::train {

double Evaluation::perplexity() const { return std::exp(loss()); }

double Evaluation::bits_per_byte(const TextAmount& text) const {
  return loss_sum / std::numbers::ln2 / text.bytes;
}

double Evaluation::word_perplexity(const TextAmount& text) const {
  return std::exp(loss_sum / (text.words + text.line_ends));
}

Evaluation Trainer::evaluate(const io::Samples& samples, std::int64_t count, comm::World& world,
                             const std::function<bool()>& is_asked_to_stop) {
  fault::reach("step.validation");
  const std::int64_t chunks = (count + microbatch() - 1) / microbatch();
  executor_->finish(*ctx_);
  StageWorker::PassArgs passes;
  passes.mode = model::Mode::evaluate;
  passes.step_views = step_views();
  Evaluation mine;
  int unread = 0;
  const bool has_loss = stage_.ends_model(stage_.chunks() - 1);
  for (std::int64_t first = 0; first < chunks; first += config_.parallel.data) {
    if (is_asked_to_stop && !world.all(!is_asked_to_stop())) {
      mine.is_whole = false;
      break;
    }
    const std::int64_t chunk = first + mesh_.at().data;
    if (chunk >= chunks) break;  // in the last round, after which nothing is asked
    passes.tokens = SampledData{samples, chunk, count, config_.parallel.data};
    ops::begin_step(*ctx_, input_, records_->state(), records_->sums());
    worker_->begin(passes);
    evaluation_->run(*ctx_, *worker_);
    if (!has_loss) {  // nothing is read here, and the feed's memory is used again
      if (++unread % program_.microbatches == 0) synchronize(*ctx_);
      continue;
    }
    // Summed in double on the host, so that the number does not depend on the layout.
    const auto sums = records_->read_sums();
    mine.loss_sum += sums[ops::kSumLoss];
    mine.tokens += sums[ops::kSumTokens];
    mine.correct += sums[ops::kSumCorrect];
    mine.correct5 += sums[ops::kSumCorrect5];
  }
  evaluation_->finish(*ctx_);
  return {world.sum(mine.loss_sum), world.sum(mine.tokens), world.sum(mine.correct),
          world.sum(mine.correct5), mine.is_whole};
}

}  // namespace hyperslab::train
