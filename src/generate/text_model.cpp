// SPDX-License-Identifier: Apache-2.0
#include "text_model.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/argmax.hpp"
#include "hyperslab/ops/elementwise.hpp"

namespace hyperslab::generate {
namespace {

std::unique_ptr<Reading> make_reading(train::Trainer& trainer, Dim pass_tokens) {
  switch (trainer.stage().options().generation) {
    case model::Generation::none: break;
    case model::Generation::cached: return make_cached_reading(trainer, pass_tokens);
    case model::Generation::whole: return make_whole_reading(trainer);
  }
  throw Error(ExitCode::internal, "this trainer was not planned to continue texts");
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

TextModel::TextModel(train::Trainer& trainer, bool graphs, Dim vocabulary, comm::World* ranks)
    : trainer_(&trainer),
      orders_(ranks),
      vocabulary_(vocabulary),
      size_(trainer.stage().options().cache_size),
      pass_tokens_(std::max(size_.rows, trainer.slot_tokens())),
      reading_(make_reading(trainer, pass_tokens_)),
      graphs_(graphs && orders_.is_alone() && reading_->repeats()),
      chosen_(trainer.context().device(), DType::i32, {size_.rows}),
      chosen_on_host_(trainer.context().device(),
                      static_cast<std::size_t>(size_.rows) * sizeof(std::int32_t)),
      staged_choices_(trainer.context().device(),
                      static_cast<std::size_t>(size_.rows) * sizeof(ops::TokenChoice)),
      choices_(trainer.context().device(), DType::u8,
               {size_.rows, static_cast<Dim>(sizeof(ops::TokenChoice))}),
      last_(make_block(size_.rows)) {}

LogitsBlock TextModel::make_block(Dim tokens) const {
  return {trainer_->stage().options().compute, trainer_->context().device(), tokens,
          trainer_->stage().results().logits_columns};
}

std::size_t TextModel::logits_row_bytes() const {
  return static_cast<std::size_t>(trainer_->stage().results().logits_columns) * sizeof(float);
}

/// Rows that only fill the frame choose as the last one does.
void TextModel::stage(std::span<const ops::TokenChoice> choices, const Frame& frame) {
  auto* staged = static_cast<ops::TokenChoice*>(staged_choices_.data());
  std::fill(std::ranges::copy(choices, staged).out, staged + frame.B, choices.back());
}

void TextModel::enqueue_wanted(const Frame& frame, Wanted wanted) {
  Context& ctx = trainer_->context();
  const View logits = last_.view(frame.B);
  reading_->enqueue(frame, logits);
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

void TextModel::require_planned(std::span<const RowRead> texts) const {
  const auto B = static_cast<Dim>(texts.size());
  const auto T = static_cast<Dim>(texts.front().tokens.size());
  require(B <= size_.rows && B * T <= pass_tokens_, "a pass of more tokens than were planned");
}

template <class Pass>
void TextModel::lead(PassOrder order, std::span<const RowRead> texts, Pass&& pass) {
  require(!has_failed_, "a pass after one that failed");
  orders_.send(order, texts);
  try {
    pass();
  } catch (...) {
    has_failed_ = !is_alone();
    throw;
  }
}

void TextModel::read(std::span<const RowRead> texts, Wanted wanted,
                     std::span<const ops::TokenChoice> choices) {
  lead(PassOrder::read, texts, [&] { run(texts, wanted, choices); });
}

void TextModel::run(std::span<const RowRead> texts, Wanted wanted,
                    std::span<const ops::TokenChoice> choices) {
  require_planned(texts);
  const Frame frame = reading_->frame_of(texts);
  reading_->stage(texts, frame);
  if (wanted == Wanted::drawn) {
    require(choices.size() == texts.size(), "a pass that draws needs a choice for each text");
    stage(choices, frame);
  }
  frame_rows_ = frame.B;
  Context& ctx = trainer_->context();
  if (frame.T == 1) {  // all that changes is staged
    segments_[{frame.B, wanted}].run(ctx, graphs_, [&] { enqueue_wanted(frame, wanted); });
  } else {
    enqueue_wanted(frame, wanted);
  }
  synchronize(ctx);
}

std::int32_t TextModel::chosen(std::size_t row) const {
  return static_cast<const std::int32_t*>(chosen_on_host_.data())[row];
}

void TextModel::fetch_logits() {
  last_.fetch(trainer_->context(), frame_rows_);
  synchronize(trainer_->context());
}

void TextModel::read_all(std::span<const RowRead> texts, LogitsBlock& to) {
  lead(PassOrder::read_all, texts, [&] { run_all(texts, to); });
}

void TextModel::follow(const std::function<void()>& load) {
  constexpr std::chrono::milliseconds kRest(10);
  std::optional<LogitsBlock> all;  // which no one reads here
  Dim room = 0;
  for (;;) {
    switch (orders_.receive()) {
      case PassOrder::read: run(orders_.rows(), Wanted::nothing); break;
      case PassOrder::read_all: {
        const std::span<const RowRead> rows = orders_.rows();
        const auto tokens = static_cast<Dim>(rows.size() * rows.front().tokens.size());
        if (!all || tokens > room) all.emplace(make_block(room = tokens));
        run_all(rows, *all);
        break;
      }
      case PassOrder::rest: std::this_thread::sleep_for(kRest); break;
      case PassOrder::load: load(); break;
      case PassOrder::end: return;
    }
  }
}

void TextModel::run_all(std::span<const RowRead> texts, LogitsBlock& to) {
  require_planned(texts);
  const auto B = static_cast<Dim>(texts.size());
  const auto T = static_cast<Dim>(texts.front().tokens.size());
  const Frame frame = {B, T, T - 1};
  reading_->stage(texts, frame);
  const Dim tokens = B * T;
  reading_->enqueue(frame, to.view(tokens));
  to.fetch(trainer_->context(), tokens);
  synchronize(trainer_->context());
}

}  // namespace hyperslab::generate
