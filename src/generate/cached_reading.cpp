// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/transfer.hpp"
#include "reading.hpp"

namespace hyperslab::generate {
namespace {

/// Numbers of rows and of tokens that a GPU's passes have, so that few kinds of products are timed
/// and few graphs kept: from 16 on at most a quarter more than asked for.
Dim rounded_up(Dim count) {
  constexpr Dim kLeast = 16;
  if (count <= kLeast) {
    return static_cast<Dim>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  }
  const auto below = static_cast<Dim>(std::bit_floor(static_cast<std::uint64_t>(count - 1)));
  const Dim step = std::max<Dim>(1, below / 4);
  return (count + step - 1) / step * step;
}

/// Keeps keys and values, in pages. With a single row the cache has no pages: kernels for one text
/// read it from end to end.
class CachedReading final : public Reading {
 public:
  CachedReading(train::Trainer& trainer, Dim pass_tokens)
      : trainer_(&trainer),
        size_(trainer.stage().options().cache_size),
        pass_tokens_(pass_tokens),
        staged_(trainer.context().device(), static_cast<std::size_t>(words()) * sizeof(int)),
        words_(trainer.context().device(), DType::i32, {words()}) {}

  [[nodiscard]] Frame frame_of(std::span<const RowRead> texts, Dim most) const override;
  void stage(std::span<const RowRead> texts, const Frame& frame) override;
  void enqueue(const Frame& frame, View logits) override;
  [[nodiscard]] bool repeats() const override { return true; }

 private:
  [[nodiscard]] Dim words() const {
    return pass_tokens_ + size_.rows * (1 + size_.pages_of_text());
  }
  [[nodiscard]] View words_at(const View& words, Dim first, const Shape& shape) const {
    return words.slice(first, shape.numel()).reshaped(shape);
  }

  train::Trainer* trainer_;
  model::CacheSize size_;
  Dim pass_tokens_;
  PinnedBuffer staged_;  // tokens, past tokens, pages of every row
  Tensor words_;         // copy of staged_ on the device
  Dim past_ = 0;         // the most of a row of the pass that is staged
};

Frame CachedReading::frame_of(std::span<const RowRead> texts, Dim most) const {
  const auto B = static_cast<Dim>(texts.size());
  const auto T = static_cast<Dim>(texts.front().tokens.size());
  Frame frame = {B, T, T - 1};
  if (trainer_->context().device() != Device::cuda) return frame;
  if (most > 0) frame.B = std::min(rounded_up(B), size_.rows);
  const Dim past = std::ranges::max(texts, {}, &RowRead::past).past;
  frame.T = std::min({rounded_up(T), size_.tokens - past, pass_tokens_ / frame.B});
  if (most > 0) frame.T = std::min(frame.T, most);
  return frame;
}

/// Rows that only fill the frame repeat the last text, pages and all, and write the same values;
/// tokens that do are 0 and lie behind the text, in its last page or in none; without pages, where
/// the tokens that follow will.
void CachedReading::stage(std::span<const RowRead> texts, const Frame& frame) {
  past_ = std::ranges::max(texts, {}, &RowRead::past).past;
  const Dim most = size_.pages_of_text();
  auto* tokens = static_cast<std::int32_t*>(staged_.data());
  std::int32_t* past = tokens + frame.B * frame.T;
  std::int32_t* pages = past + frame.B;
  for (Dim b = 0; b < frame.B; ++b) {
    const RowRead& text = texts[std::min(static_cast<std::size_t>(b), texts.size() - 1)];
    std::int32_t* row = std::ranges::copy(text.tokens, tokens + b * frame.T).out;
    std::fill(row, tokens + (b + 1) * frame.T, 0);
    past[b] = static_cast<std::int32_t>(text.past);
    std::int32_t* page = std::ranges::copy(text.pages, pages + b * most).out;
    std::fill(page, pages + (b + 1) * most, -1);
  }
}

void CachedReading::enqueue(const Frame& frame, View logits) {
  Context& ctx = trainer_->context();
  const Dim most = size_.pages_of_text();
  const Dim count = frame.B * (frame.T + 1 + most);
  const View words = words_.view().slice(0, count);
  copy(ctx, View(staged_.data(), DType::i32, Device::cpu, {count}), words);
  const View tokens = words_at(words, 0, {frame.B, frame.T});
  const ops::TokenPosition position = {past_, words_at(words, frame.B * frame.T, {frame.B})};
  const CView pages =
      size_.rows > 1 ? words_at(words, frame.B * (frame.T + 1), {frame.B, most}) : View();
  trainer_->stage().decode(ctx, {tokens, position, pages, frame.last}, logits);
}

}  // namespace

std::unique_ptr<Reading> make_cached_reading(train::Trainer& trainer, Dim pass_tokens) {
  return std::make_unique<CachedReading>(trainer, pass_tokens);
}

}  // namespace hyperslab::generate
