// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>
#include <optional>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
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

namespace {

/// Gives the class logits of every microbatch to a listener.
class LogitsToHost {
 public:
  LogitsToHost(Context& ctx, CView logits, CView labels)
      : ctx_(ctx),
        logits_(logits),
        labels_(labels),
        widened_(ctx.device(), DType::f32, logits.shape()),
        host_logits_(Device::cpu, DType::f32, logits.shape()),
        host_labels_(Device::cpu, DType::i32, labels.shape()) {}
  void copy_to_host() {
    ops::cast(ctx_, logits_, widened_.view());
    copy(ctx_, widened_.view(), host_logits_.view());
    copy(ctx_, labels_, host_labels_.view());
    synchronize(ctx_);
  }
  [[nodiscard]] CView logits() const { return host_logits_.view(); }
  [[nodiscard]] CView labels() const { return host_labels_.view(); }

 private:
  Context& ctx_;
  CView logits_, labels_;
  Tensor widened_;
  Tensor host_logits_, host_labels_;
};

/// Brings what context ranks found of the targets of the same samples together.
class GatheredScores {
 public:
  /// `mine`: (B T, kTargetScoreCount), of a rank's tokens. `context`: null if these are all.
  GatheredScores(CView mine, Dim B, comm::Communicator* context)
      : mine_(mine), B_(B), context_(context), on_host_(Device::cpu, mine.dtype(), all_shape()) {
    if (context == nullptr) return;
    gathered_ = Tensor(mine.device(), mine.dtype(), {context->size() * mine.numel()});
    by_rank_ = Tensor(Device::cpu, mine.dtype(), gathered_.view().shape());
  }
  /// (B, T of all ranks, kTargetScoreCount), in order of tokens. Collective over context ranks.
  [[nodiscard]] CView on_host(Context& ctx) {
    if (context_ == nullptr) {
      copy(ctx, mine_, on_host_.view());
      synchronize(ctx);
      return on_host_.view();
    }
    context_->wait(ctx, context_->all_gather(ctx, mine_.flat(), gathered_.view()));
    copy(ctx, gathered_.view(), by_rank_.view());
    synchronize(ctx);
    const Dim tokens = mine_.shape()[0] / B_;
    const CView ranks = by_rank_.view().reshaped({context_->size() * B_, tokens, mine_.shape()[1]});
    const View samples =
        on_host_.view().reshaped({B_ * context_->size(), tokens, mine_.shape()[1]});
    Context host(Device::cpu);
    for (int rank = 0; rank < context_->size(); ++rank) {
      for (Dim b = 0; b < B_; ++b) {
        copy(host, ranks.slice(rank * B_ + b, 1), samples.slice(b * context_->size() + rank, 1));
      }
    }
    return on_host_.view();
  }

 private:
  [[nodiscard]] Shape all_shape() const {
    const Dim ranks = context_ == nullptr ? 1 : context_->size();
    return {B_, ranks * mine_.shape()[0] / B_, mine_.shape()[1]};
  }
  CView mine_;
  Dim B_;
  comm::Communicator* context_;
  Tensor on_host_;
  Tensor gathered_;  ///< by rank
  Tensor by_rank_;
};

/// Hands the results of a rank that ends the model to the listeners of an evaluation.
class ToListeners {
 public:
  /// `context`: the ranks that have other tokens of the samples, the first of which hands over.
  ToListeners(Context& ctx, const model::Stage& stage, const Trainer::EvaluationCalls& calls,
              comm::Communicator* context)
      : ctx_(ctx), calls_(calls), is_first_(context == nullptr || context->rank() == 0) {
    if (calls.logits && stage.results().class_logits) {
      logits_.emplace(ctx, stage.results().class_logits,
                      stage.batch({stage.chunks() - 1, 0}).labels);
    }
    if (!calls.scores || !stage.results().target_scores) return;
    scores_.emplace(stage.results().target_scores, stage.options().B, context);
  }
  /// Hands over the newest microbatch, whose first sample is `first`.
  void report(std::int64_t first) {
    if (logits_) {
      logits_->copy_to_host();
      calls_.logits(first, logits_->logits(), logits_->labels());
    }
    if (!scores_) return;
    const CView scores = scores_->on_host(ctx_);
    if (is_first_) calls_.scores(first, scores);
  }

 private:
  Context& ctx_;
  const Trainer::EvaluationCalls& calls_;
  bool is_first_;
  std::optional<LogitsToHost> logits_;
  std::optional<GatheredScores> scores_;
};

/// Sums in double on the host, so that the numbers do not depend on the layout.
void add_sums(const auto& sums, Evaluation& to) {
  to.loss_sum += sums[ops::kSumLoss];
  to.tokens += sums[ops::kSumTokens];
  to.weights += sums[ops::kSumWeights];
  to.correct += sums[ops::kSumCorrect];
  to.correct5 += sums[ops::kSumCorrect5];
}

}  // namespace

/// True if a pass of one data rank needs others.
bool Trainer::passes_together() const {
  return presence_.values().in_rooms() || mesh_.expert_group() != nullptr;
}

Evaluation Trainer::evaluate(const io::Samples& samples, std::int64_t count, comm::World& world,
                             const EvaluationCalls& calls) {
  fault::reach("step.validation");
  const std::int64_t chunks = (count + microbatch() - 1) / microbatch();
  state_->complete_values();
  StageWorker::PassArgs passes;
  passes.mode = model::Mode::evaluate;
  passes.step_views = step_views();
  Evaluation mine;
  int unread = 0;
  const bool has_loss = stage_.ends_model(stage_.chunks() - 1);
  std::optional<ToListeners> listeners;
  if (has_loss && mesh_.at(mesh::Axis::tensor) == 0) {
    listeners.emplace(*ctx_, stage_, calls, mesh_.context_group());
  }
  for (std::int64_t first = 0; first < chunks; first += config_.parallel.data) {
    if (calls.is_asked_to_stop && !world.all(!calls.is_asked_to_stop())) {
      mine.is_whole = false;
      break;
    }
    const std::int64_t chunk = first + mesh_.at(mesh::kSamples);
    const bool is_mine = chunk < chunks;  // not on all data ranks in the last round
    if (!is_mine && !passes_together()) break;
    passes.tokens =
        SampledData{samples, is_mine ? chunk : chunks - 1, count, config_.parallel.data};
    records_->begin(input_);
    worker_->begin(passes);
    evaluation_->run(*ctx_, *worker_);
    if (!has_loss) {  // nothing is read here, and the feed's memory is used again
      if (++unread % program_.microbatches == 0) synchronize(*ctx_);
      continue;
    }
    if (!is_mine) continue;  // the pass was for the others, which gathered values or sent rows here
    add_sums(records_->read_sums(), mine);
    if (listeners) listeners->report(chunk * microbatch());
  }
  evaluation_->finish(*ctx_);
  return {world.sum(mine.loss_sum), world.sum(mine.tokens), world.sum(mine.correct),
          world.sum(mine.correct5), mine.is_whole,          world.sum(mine.weights)};
}

}  // namespace hyperslab::train
