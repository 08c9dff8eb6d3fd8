// SPDX-License-Identifier: Apache-2.0
#include "cached_model.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/argmax.hpp"
#include "hyperslab/ops/elementwise.hpp"

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

}  // namespace

LogitsBlock::LogitsBlock(DType compute, Device device, Dim tokens, Dim columns)
    : logits_(device, compute, {tokens, columns}),
      widened_(device, DType::f32, {tokens, columns}),
      host_(device, widened_.view().bytes()) {}

void LogitsBlock::fetch(Context& ctx, Dim tokens) {
  const View wide = widened_.view().slice(0, tokens);
  ops::cast(ctx, view(tokens), wide);
  copy(ctx, wide, View(host_.data(), DType::f32, Device::cpu, wide.shape()));
}

std::span<const float> LogitsBlock::row(std::size_t i, Dim V) const {
  const Dim columns = logits_.view().shape()[1];
  const float* first = static_cast<const float*>(host_.data()) + static_cast<Dim>(i) * columns;
  return {first, static_cast<std::size_t>(V)};
}

CachedModel::CachedModel(train::Trainer& trainer, bool graphs, Dim vocabulary, comm::World* ranks)
    : trainer_(&trainer),
      orders_(ranks),
      graphs_(graphs && orders_.is_alone()),
      vocabulary_(vocabulary),
      size_(trainer.stage().options().cache_size),
      pass_tokens_(trainer.microbatch() * trainer.sequence()),
      staged_(trainer.context().device(),
              static_cast<std::size_t>(pass_tokens_ + size_.rows * (1 + size_.pages_of_text())) *
                  sizeof(std::int32_t)),
      words_(trainer.context().device(), DType::i32,
             {pass_tokens_ + size_.rows * (1 + size_.pages_of_text())}),
      chosen_(trainer.context().device(), DType::i32, {size_.rows}),
      chosen_on_host_(trainer.context().device(),
                      static_cast<std::size_t>(size_.rows) * sizeof(std::int32_t)),
      staged_choices_(trainer.context().device(),
                      static_cast<std::size_t>(size_.rows) * sizeof(ops::TokenChoice)),
      choices_(trainer.context().device(), DType::u8,
               {size_.rows, static_cast<Dim>(sizeof(ops::TokenChoice))}),
      last_(make_block(size_.rows)) {}

LogitsBlock CachedModel::make_block(Dim tokens) const {
  return {trainer_->stage().options().compute, trainer_->context().device(), tokens,
          trainer_->stage().logits_columns()};
}

std::size_t CachedModel::logits_row_bytes() const {
  return static_cast<std::size_t>(trainer_->stage().logits_columns()) * sizeof(float);
}

CachedModel::Frame CachedModel::frame_of(std::span<const RowRead> texts) const {
  const auto B = static_cast<Dim>(texts.size());
  const auto T = static_cast<Dim>(texts.front().tokens.size());
  require(B <= size_.rows && B * T <= pass_tokens_, "a pass of more tokens than were planned");
  Frame frame = {B, T, T - 1};
  if (trainer_->context().device() != Device::cuda || size_.rows == 1) return frame;
  if (T == 1) frame.B = std::min(rounded_up(B), size_.rows);
  Dim past = 0;
  for (const RowRead& text : texts) past = std::max(past, text.past);
  if (T > 1) frame.T = std::min({rounded_up(T), size_.tokens - past, pass_tokens_ / B});
  return frame;
}

View CachedModel::words_at(const View& words, Dim first, const Shape& shape) const {
  return words.slice(first, shape.numel()).reshaped(shape);
}

/// Rows that only fill the frame repeat the last text, pages and all, and write what it writes;
/// tokens that do are 0 and lie behind the text, in its last page or in none.
void CachedModel::stage(std::span<const RowRead> texts, const Frame& frame) {
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

void CachedModel::enqueue(const Frame& frame, Dim past, View logits) {
  Context& ctx = trainer_->context();
  const Dim most = size_.pages_of_text();
  const Dim count = frame.B * (frame.T + 1 + most);
  const View words = words_.view().slice(0, count);
  copy(ctx, View(staged_.data(), DType::i32, Device::cpu, {count}), words);
  const View tokens = words_at(words, 0, {frame.B, frame.T});
  const ops::TokenPosition position = {past, words_at(words, frame.B * frame.T, {frame.B})};
  if (size_.rows == 1) {
    trainer_->stage().decode(ctx, tokens, position, logits);
    return;
  }
  const View pages = words_at(words, frame.B * (frame.T + 1), {frame.B, most});
  trainer_->stage().decode(ctx, {tokens, position, pages, frame.last}, logits);
}

/// Rows that only fill the frame choose as the last one does.
void CachedModel::stage(std::span<const ops::TokenChoice> choices, const Frame& frame) {
  auto* staged = static_cast<ops::TokenChoice*>(staged_choices_.data());
  std::fill(std::ranges::copy(choices, staged).out, staged + frame.B, choices.back());
}

void CachedModel::enqueue_wanted(const Frame& frame, Dim past, Wanted wanted) {
  Context& ctx = trainer_->context();
  const View logits = last_.view(frame.B);
  enqueue(frame, past, logits);
  if (wanted == Wanted::nothing) return;
  if (wanted == Wanted::logits) return last_.fetch(ctx, frame.B);
  const View chosen = chosen_.view().slice(0, frame.B);
  if (wanted == Wanted::likeliest) {
    ops::argmax(ctx, logits, vocabulary_, chosen);
  } else {
    const View choices = choices_.view().slice(0, frame.B);
    copy(ctx, View(staged_choices_.data(), DType::u8, Device::cpu, choices.shape()), choices);
    ops::sample(ctx, logits, vocabulary_, choices, chosen);
  }
  copy(ctx, chosen, View(chosen_on_host_.data(), DType::i32, Device::cpu, {frame.B}));
}

template <class Pass>
void CachedModel::lead(PassOrder order, std::span<const RowRead> texts, Pass&& pass) {
  require(!has_failed_, "a pass after one that failed");
  orders_.send(order, texts);
  try {
    pass();
  } catch (...) {
    has_failed_ = !is_alone();
    throw;
  }
}

void CachedModel::read(std::span<const RowRead> texts, Wanted wanted,
                       std::span<const ops::TokenChoice> choices) {
  lead(PassOrder::read, texts, [&] { run(texts, wanted, choices); });
}

void CachedModel::run(std::span<const RowRead> texts, Wanted wanted,
                      std::span<const ops::TokenChoice> choices) {
  const Frame frame = frame_of(texts);
  const Dim past = std::ranges::max(texts, {}, &RowRead::past).past;
  stage(texts, frame);
  if (wanted == Wanted::drawn) {
    require(choices.size() == texts.size(), "a pass that draws needs a choice for each text");
    stage(choices, frame);
  }
  frame_rows_ = frame.B;
  Context& ctx = trainer_->context();
  if (frame.T == 1) {  // all that changes is in what is staged
    segments_[{frame.B, wanted}].run(ctx, graphs_, [&] { enqueue_wanted(frame, past, wanted); });
  } else {
    enqueue_wanted(frame, past, wanted);
  }
  synchronize(ctx);
}

std::int32_t CachedModel::chosen(std::size_t row) const {
  return static_cast<const std::int32_t*>(chosen_on_host_.data())[row];
}

void CachedModel::fetch_logits() {
  last_.fetch(trainer_->context(), frame_rows_);
  synchronize(trainer_->context());
}

void CachedModel::read_all(std::span<const RowRead> texts, LogitsBlock& to) {
  lead(PassOrder::read_all, texts, [&] { run_all(texts, to); });
}

void CachedModel::follow() {
  constexpr std::chrono::milliseconds kRest(10);
  std::optional<LogitsBlock> all;  // which no one reads here
  Dim room = 0;
  for (;;) {
    switch (orders_.receive()) {
      case PassOrder::read: run(orders_.rows(), Wanted::nothing); break;
      case PassOrder::read_all: {
        const std::span<const RowRead> rows = orders_.rows();
        const auto tokens = static_cast<Dim>(rows.size() * rows.front().tokens.size());
        if (tokens > room) all.emplace(make_block(room = tokens));
        run_all(rows, *all);
        break;
      }
      case PassOrder::rest: std::this_thread::sleep_for(kRest); break;
      case PassOrder::end: return;
    }
  }
}

void CachedModel::run_all(std::span<const RowRead> texts, LogitsBlock& to) {
  Frame frame = frame_of(texts);
  frame.B = static_cast<Dim>(texts.size());
  frame.T = static_cast<Dim>(texts.front().tokens.size());
  const Dim past = std::ranges::max(texts, {}, &RowRead::past).past;
  stage(texts, frame);
  const Dim tokens = frame.B * frame.T;
  enqueue(frame, past, to.view(tokens));
  to.fetch(trainer_->context(), tokens);
  synchronize(trainer_->context());
}

}  // namespace hyperslab::generate
