// SPDX-License-Identifier: Apache-2.0
#include "text_model.hpp"

#include <algorithm>
#include <chrono>
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

TextModel::TextModel(train::Trainer& trainer, const TextModelOptions& options, comm::World* ranks)
    : trainer_(&trainer),
      options_(options),
      orders_(ranks, options.number),
      size_(trainer.stage().options().cache_size),
      pass_tokens_(std::max(size_.rows, trainer.slot_tokens())),
      reading_(make_reading(trainer, pass_tokens_)),
      chosen_(trainer.context().device(), DType::i32, {most_results()}),
      chosen_on_host_(trainer.context().device(),
                      static_cast<std::size_t>(most_results()) * sizeof(std::int32_t)),
      staged_choices_(trainer.context().device(),
                      static_cast<std::size_t>(most_results()) * sizeof(ops::TokenChoice)),
      choices_(trainer.context().device(), DType::u8,
               {most_results(), static_cast<Dim>(sizeof(ops::TokenChoice))}),
      last_(make_block(size_.rows)) {
  options_.graphs = options.graphs && orders_.is_alone() && reading_->repeats();
  if (options.draft_tokens > 0) every_ = std::make_unique<LogitsBlock>(make_block(most_results()));
}

LogitsBlock TextModel::make_block(Dim tokens) const {
  return {trainer_->stage().options().compute, trainer_->context().device(), tokens,
          trainer_->stage().results().logits_columns};
}

std::size_t TextModel::logits_row_bytes() const {
  return static_cast<std::size_t>(trainer_->stage().results().logits_columns) * sizeof(float);
}

/// The newest pass draws by these. Rows and tokens that only fill the frame choose as the last do.
void TextModel::stage(std::span<const ops::TokenChoice> choices, Dim texts) {
  require(!choices.empty() && std::ssize(choices) % texts == 0,
          "a pass that draws needs choices for each text");
  const Dim each = std::ssize(choices) / texts;
  auto* staged = static_cast<ops::TokenChoice*>(staged_choices_.data());
  for (Dim i = 0; i < results_; ++i) {
    const Dim row = std::min(i / results_of_row_, texts - 1);
    const Dim token = std::min(i % results_of_row_, each - 1);
    staged[i] = choices[static_cast<std::size_t>(row * each + token)];
  }
}

void TextModel::enqueue_wanted(const Frame& frame, Wanted wanted) {
  Context& ctx = trainer_->context();
  const View logits = newest_->view(results_);
  reading_->enqueue(frame, logits);
  if (wanted == Wanted::nothing) return;
  if (wanted == Wanted::logits) return newest_->fetch(ctx, results_);
  const View chosen = chosen_.view().slice(0, results_);
  if (wanted == Wanted::likeliest) {
    ops::argmax(ctx, logits, options_.vocabulary, chosen);
  } else {
    const View choices = choices_.view().slice(0, results_);
    copy(ctx, View(staged_choices_.data(), DType::u8, Device::cpu, choices.shape()), choices);
    ops::sample(ctx, logits, options_.vocabulary, choices, chosen);
  }
  copy(ctx, chosen, View(chosen_on_host_.data(), DType::i32, Device::cpu, {results_}));
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
  const Dim most = texts.front().tokens.size() == 1 ? 1 : 0;
  const Frame frame = reading_->frame_of(texts, most);
  reading_->stage(texts, frame);
  newest_ = &last_;
  results_ = frame.B;
  results_of_row_ = 1;
  if (wanted == Wanted::drawn) stage(choices, std::ssize(texts));
  Context& ctx = trainer_->context();
  if (frame.T == 1) {  // all that changes is staged
    segments_[{frame.B, wanted}].run(ctx, options_.graphs, [&] { enqueue_wanted(frame, wanted); });
  } else {
    enqueue_wanted(frame, wanted);
  }
  synchronize(ctx);
}

void TextModel::verify(std::span<const RowRead> texts, Wanted wanted,
                       std::span<const ops::TokenChoice> choices) {
  lead(PassOrder::verify, texts, [&] { run_verify(texts, wanted, choices); });
}

void TextModel::run_verify(std::span<const RowRead> texts, Wanted wanted,
                           std::span<const ops::TokenChoice> choices) {
  require_planned(texts);
  require(every_ && std::ssize(texts.front().tokens) <= 1 + options_.draft_tokens,
          "a pass of more guesses than were planned");
  Frame frame = reading_->frame_of(texts, 1 + options_.draft_tokens);
  frame.last = frame.T - 1;
  reading_->stage(texts, frame);
  newest_ = every_.get();
  results_ = frame.B * frame.T;
  results_of_row_ = frame.T;
  if (wanted == Wanted::drawn) stage(choices, std::ssize(texts));
  enqueue_wanted(frame, wanted);
  synchronize(trainer_->context());
}

std::int32_t TextModel::chosen(std::size_t row, std::size_t token) const {
  return static_cast<const std::int32_t*>(chosen_on_host_.data())[result(row, token)];
}

void TextModel::fetch_logits() {
  newest_->fetch(trainer_->context(), results_);
  synchronize(trainer_->context());
}

void TextModel::read_all(std::span<const RowRead> texts, LogitsBlock& to) {
  lead(PassOrder::read_all, texts, [&] { run_all(texts, to); });
}

void TextModel::follow(const std::function<void()>& load, TextModel* second) {
  for (;;) {
    const PassOrder order = orders_.receive();
    if (order == PassOrder::end) return;
    if (order == PassOrder::load) {
      load();
      continue;
    }
    TextModel& model = orders_.model() == options_.number || second == nullptr ? *this : *second;
    model.obey(order, orders_.rows());
  }
}

void TextModel::obey(PassOrder order, std::span<const RowRead> rows) {
  constexpr std::chrono::milliseconds kRest(10);
  switch (order) {
    case PassOrder::read: return run(rows, Wanted::nothing);
    case PassOrder::verify: return run_verify(rows, Wanted::nothing);
    case PassOrder::read_all: {
      const auto tokens = static_cast<Dim>(rows.size() * rows.front().tokens.size());
      if (!all_ || all_->tokens() < tokens) all_.emplace(make_block(tokens));
      return run_all(rows, *all_);
    }
    case PassOrder::rest: return std::this_thread::sleep_for(kRest);
    case PassOrder::load:
    case PassOrder::end: return;  // follow() knows them
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
