// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "reading.hpp"

namespace hyperslab::generate {
namespace {

/// Keeps tokens alone, in the pages in which a cache has keys and values, and reads whole texts in
/// every pass: as many samples of as many tokens as a microbatch of training has, so that kernels
/// and sums are the same. Tokens after a text in its sample are 0 and count for nothing, and so do
/// those behind its pages.
class WholeReading final : public Reading {
 public:
  explicit WholeReading(train::Trainer& trainer);

  [[nodiscard]] Frame frame_of(std::span<const RowRead> texts, Dim /*most*/) const override {
    const auto T = static_cast<Dim>(texts.front().tokens.size());
    return {static_cast<Dim>(texts.size()), T, T - 1};
  }
  void stage(std::span<const RowRead> texts, const Frame& frame) override;
  void enqueue(const Frame& frame, View logits) override;
  /// The host says which tokens' logits are wanted.
  [[nodiscard]] bool repeats() const override { return false; }

 private:
  [[nodiscard]] std::int32_t& kept(const RowRead& text, Dim position) {
    const auto page = static_cast<std::size_t>(position / page_tokens_);
    return kept_.at(
        static_cast<std::size_t>(text.pages[page] * page_tokens_ + position % page_tokens_));
  }

  train::Trainer* trainer_;
  Dim samples_;  // samples of a microbatch
  Dim tokens_;   // tokens of a sample
  Dim page_tokens_;
  std::vector<std::int32_t> kept_;  // tokens of every page
  PinnedBuffer staged_;             // (texts at most, rounded up to microbatches; tokens_)
  std::vector<Dim> past_;           // earlier tokens of every text of the pass
};

Dim microbatches(Dim texts, Dim samples) { return (texts + samples - 1) / samples; }

WholeReading::WholeReading(train::Trainer& trainer)
    : trainer_(&trainer),
      samples_(trainer.microbatch()),
      tokens_(trainer.sequence()),
      page_tokens_(trainer.stage().options().cache_size.page_tokens()),
      kept_(static_cast<std::size_t>(trainer.stage().options().cache_size.pages * page_tokens_)),
      staged_(trainer.context().device(),
              static_cast<std::size_t>(
                  microbatches(trainer.stage().options().cache_size.rows, samples_) * samples_ *
                  tokens_) *
                  sizeof(std::int32_t)) {
  // A text is one document.
  const View first_keys = trainer.stage().batch({0, 0}).first_keys;
  if (!first_keys) return;
  Tensor zeros(Device::cpu, DType::i32, first_keys.shape());
  std::ranges::fill(zeros.view().span<std::int32_t>(), 0);
  copy(trainer.context(), zeros.view(), first_keys);
  synchronize(trainer.context());
}

void WholeReading::stage(std::span<const RowRead> texts, const Frame& frame) {
  past_.clear();
  auto* sample = static_cast<std::int32_t*>(staged_.data());
  for (const RowRead& text : texts) {
    require(text.past + frame.T <= tokens_, "a text longer than the context");
    const Dim length = std::min(text.past + frame.T, std::ssize(text.pages) * page_tokens_);
    for (Dim i = text.past; i < length; ++i) {
      kept(text, i) = text.tokens[static_cast<std::size_t>(i - text.past)];
    }
    for (Dim i = 0; i < length; ++i) sample[i] = kept(text, i);
    std::fill(sample + length, sample + tokens_, 0);
    sample += tokens_;
    past_.push_back(text.past);
  }
  const Dim all = microbatches(frame.B, samples_) * samples_;
  std::fill(sample, static_cast<std::int32_t*>(staged_.data()) + all * tokens_, 0);
}

void WholeReading::enqueue(const Frame& frame, View logits) {
  const bool wants_all = logits.shape()[0] == frame.B * frame.T;
  const Dim each = wants_all ? frame.T : 1;  // logits of a text
  const View batch = trainer_->stage().batch({0, 0}).tokens;
  auto* staged = static_cast<std::int32_t*>(staged_.data());
  for (Dim first = 0; first < frame.B; first += samples_) {
    copy(trainer_->context(),
         View(staged + first * tokens_, DType::i32, Device::cpu, {samples_, tokens_}), batch);
    const Dim count = std::min(samples_, frame.B - first);
    std::vector<Dim> rows;
    for (Dim b = 0; b < count; ++b) {
      const Dim end = past_[static_cast<std::size_t>(first + b)] + frame.last + 1;
      for (Dim t = end - each; t < end; ++t) rows.push_back(b * tokens_ + t);
    }
    trainer_->stage().read_whole(trainer_->context(), rows,
                                 logits.slice(first * each, count * each));
  }
}

}  // namespace

std::unique_ptr<Reading> make_whole_reading(train::Trainer& trainer) {
  return std::make_unique<WholeReading>(trainer);
}

}  // namespace hyperslab::generate
