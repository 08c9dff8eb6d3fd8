// SPDX-License-Identifier: Apache-2.0
#include "texts.hpp"

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {
namespace {

SchedulerLimits limits_of(const TextModel& model) {
  return {.rows = model.rows(),
          .pages = model.cache().pages,
          .page_tokens = model.cache().page_tokens(),
          .context = model.context(),
          .pass_tokens = model.pass_tokens()};
}

using Wanted = TextModel::Wanted;

/// The request that serves both of two texts of a pass: to draw is to choose the likeliest at
/// temperature 0, and logits serve every choice.
Wanted together(Wanted a, Wanted b) {
  if (a == b) return a;
  return a == Wanted::logits || b == Wanted::logits ? Wanted::logits : Wanted::drawn;
}

}  // namespace

Generator::Texts::Texts(TextModel& model, std::unique_ptr<Drafter> drafter)
    : model_(model), drafter_(std::move(drafter)), scheduler_(limits_of(model)) {}

void Generator::Texts::begin(std::vector<std::int32_t> prompt, const SamplingOptions& options,
                             std::size_t number, TokenListener& listener) {
  const std::size_t id = begun_++;
  const std::int64_t length = std::ssize(prompt);
  std::map<std::size_t, Text> begun;
  begun.emplace(
      id, Text{std::move(prompt), options, number, &listener, DraftLength(model_.draft_tokens())});
  scheduler_.add(id, length);
  texts_.merge(begun);  // nothing can fail once the scheduler knows the text
}

TextModel::Wanted Generator::Texts::wanted_by(const Text& text) {
  if (text.listener->wants_logits() || text.options.has_penalty()) return Wanted::logits;
  return text.options.is_greedy() ? Wanted::likeliest : Wanted::drawn;
}

/// The text, which is no longer continued.
Generator::Texts::Text Generator::Texts::drop(std::size_t id) {
  scheduler_.end(id);
  if (drafter_) drafter_->end(id);
  return std::move(texts_.extract(id).mapped());
}

/// Also of texts that wait for their first pass. A listener may be gone once its last text ended.
void Generator::Texts::end_unheard() {
  std::vector<std::size_t> unheard;
  for (const auto& [id, text] : texts_) {
    if (!text.listener->wants_tokens()) unheard.push_back(id);
  }
  for (const std::size_t id : unheard) {
    const Text ended = drop(id);
    ended.listener->end(ended.number);
  }
}

bool Generator::Texts::step(GenerateStats& stats) {
  const double start = now_seconds();
  end_unheard();
  const std::optional<SchedulerPass> pass = scheduler_.next();
  if (!pass) return false;
  std::size_t prompts = 0;  // texts that are read for the first time
  for (const ScheduledText* text : pass->texts) {
    if (!text->is_new) continue;
    ++prompts;
    if (pass->is_whole) stats.prompt_tokens += text->length - text->begin;
  }
  if (pass->goes_on) ++stats.passes;
  Rows rows;
  const Wanted wanted = make_rows(*pass, rows);
  read(*pass, wanted, rows);
  if (wanted != Wanted::nothing) {
    choose(rows, wanted);
    for (std::size_t number = 0; number < rows.size(); ++number) {
      take(rows[number], number, wanted, stats);
    }
  }
  const double seconds = now_seconds() - start;  // each text of a pass has an equal part of them
  const double share = static_cast<double>(prompts) / static_cast<double>(rows.size());
  stats.prompt_seconds += share * seconds;
  stats.seconds += (1 - share) * seconds;
  return true;
}

/// The texts of a pass with their drafts; returns the result that the pass must give.
TextModel::Wanted Generator::Texts::make_rows(const SchedulerPass& pass, Rows& rows) {
  Wanted wanted = pass.is_whole ? Wanted::likeliest : Wanted::nothing;
  for (const ScheduledText* text : pass.texts) {
    rows.push_back({.id = text->id, .text = &texts_.at(text->id)});
    if (pass.is_whole) wanted = together(wanted, wanted_by(*rows.back().text));
  }
  if (!pass.goes_on || !drafter_) return wanted;
  add_drafts(pass, rows);
  for (const Row& row : rows) {
    if (!row.draft.weights.empty()) wanted = Wanted::logits;
  }
  return wanted;
}

/// Guesses that every text of a pass has room for: all have as many tokens, fillers included.
std::int64_t Generator::Texts::room_for_drafts(const SchedulerPass& pass) const {
  std::int64_t room = model_.pass_tokens() / std::ssize(pass.texts) - 1;
  for (const ScheduledText* text : pass.texts) {
    room = std::min(room, model_.context() - text->cached);
  }
  return std::min(room, model_.draft_tokens());
}

void Generator::Texts::add_drafts(const SchedulerPass& pass, Rows& rows) {
  const std::int64_t room = room_for_drafts(pass);
  std::vector<Draft> drafts;
  for (const Row& row : rows) {
    Text& text = *row.text;
    const SamplingOptions& options = text.options;
    const std::int64_t wanted =
        std::min({room, text.draft_length.next(), options.max_tokens - text.generated - 1});
    drafts.push_back({.id = row.id,
                      .text = text.tokens,
                      .sampler = &sampler_of(text),
                      .is_drawn = options.temperature > 0,
                      .needs_logits = !options.is_greedy(),
                      .most = wanted > 0 ? scheduler_.reserve(row.id, wanted) : 0});
  }
  drafter_->draft(drafts);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].draft = std::move(drafts[i]);
}

/// A row of the model's pass is the text's new tokens and its guesses; zeros fill up shorter ones.
void Generator::Texts::read(const SchedulerPass& pass, TextModel::Wanted wanted, Rows& rows) {
  std::size_t guesses = 0;
  for (const Row& row : rows) guesses = std::max(guesses, row.draft.tokens.size());
  std::vector<std::vector<std::int32_t>> filled(guesses > 0 ? rows.size() : 0);
  std::vector<RowRead> read;
  std::vector<ops::TokenChoice> choices;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ScheduledText& text = *pass.texts[i];
    const std::int64_t past = text.cached - pass.count;
    std::span<const std::int32_t> tokens = rows[i].text->tokens;
    tokens = tokens.subspan(static_cast<std::size_t>(text.begin + past),
                            static_cast<std::size_t>(pass.count));
    if (guesses > 0) {
      const std::vector<std::int32_t>& draft = rows[i].draft.tokens;
      filled[i].assign(tokens.begin(), tokens.end());
      filled[i].insert(filled[i].end(), draft.begin(), draft.end());
      filled[i].resize(1 + guesses);
      tokens = filled[i];
    }
    read.push_back({tokens, past, text.pages});
    for (std::size_t ahead = 0; wanted == Wanted::drawn && ahead <= guesses; ++ahead) {
      choices.push_back(sampler_of(*rows[i].text).choice(static_cast<std::int64_t>(ahead)));
    }
  }
  guesses > 0 ? model_.verify(read, wanted, choices) : model_.read(read, wanted, choices);
}

Sampler& Generator::Texts::sampler_of(Text& text) const {
  if (!text.sampler) {
    text.sampler = std::make_unique<Sampler>(text.options, text.number, model_.vocabulary());
    text.sampler->see(text.tokens);
  }
  return *text.sampler;
}

/// The token after those that the row has chosen.
std::int32_t Generator::Texts::next_token(const Row& row, std::size_t number,
                                          TextModel::Wanted wanted) {
  Sampler& sampler = sampler_of(*row.text);
  const std::size_t chosen = row.chosen.size();
  if (wanted == Wanted::logits) {
    const std::span<const float> logits = model_.logits(number, chosen);
    return chosen < row.draft.tokens.size() ? sampler.next(logits, row.draft.at(chosen))
                                            : sampler.next(logits);
  }
  const std::int32_t token = model_.chosen(number, chosen);
  if (token < 0) {
    model_.fetch_logits();
    return sampler.next(model_.logits(number, chosen));  // for its error
  }
  sampler.take();
  return token;
}

/// Chooses the tokens that follow: those of the draft that hold, and one more.
void Generator::Texts::follow(Row& row, std::size_t number, TextModel::Wanted wanted) {
  const std::vector<std::int32_t>& guessed = row.draft.tokens;
  for (bool holds = true; holds;) {
    const std::size_t place = row.chosen.size();
    const std::int32_t token = next_token(row, number, wanted);
    row.chosen.push_back(token);
    row.text->sampler->see({&token, 1});
    holds = place < guessed.size() && token == guessed[place] && !row.text->options.stops_at(token);
  }
}

/// The next tokens of every text of the newest pass. Samplers that are given logits look at whole
/// vocabularies, so that threads share the texts.
void Generator::Texts::choose(Rows& rows, TextModel::Wanted wanted) {
  constexpr std::int64_t kWorthThreads = std::int64_t{1} << 20;  // logits: they take a millisecond
  const bool shares =
      wanted == Wanted::logits && std::ssize(rows) * model_.vocabulary() >= kWorthThreads;
  const int threads = shares ? model_.threads() : 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (std::ptrdiff_t i = 0; i < std::ssize(rows); ++i) {
    Row& row = rows[static_cast<std::size_t>(i)];
    try {
      follow(row, static_cast<std::size_t>(i), wanted);
    } catch (...) {
      row.error = std::current_exception();
    }
  }
}

/// Adds the chosen tokens to a text and hands them to the listener.
void Generator::Texts::take(Row& row, std::size_t number, TextModel::Wanted wanted,
                            GenerateStats& stats) {
  Text& text = *row.text;
  const std::vector<std::int32_t>& guessed = row.draft.tokens;
  DraftCounts drafts = {.drafted = std::ssize(guessed)};
  bool goes_on = true;
  try {
    for (std::size_t i = 0; goes_on && i < row.chosen.size(); ++i) {
      if (i < guessed.size() && guessed[i] == row.chosen[i]) ++drafts.accepted;
      goes_on = report(
          text, row.chosen[i],
          wanted == Wanted::logits ? model_.logits(number, i) : std::span<const float>(), stats);
    }
  } catch (...) {
    row.error = std::current_exception();
  }
  if (drafts.drafted > 0) {
    stats.drafts += drafts;
    text.draft_length.record(drafts.drafted, drafts.accepted);
    text.listener->drafted(text.number, drafts);
  }
  if (goes_on && !row.error) return scheduler_.grow(row.id, std::ssize(row.chosen));
  const Text ended = drop(row.id);
  goes_on ? ended.listener->fail(ended.number, row.error) : ended.listener->end(ended.number);
}

bool Generator::Texts::report(Text& text, std::int32_t token, std::span<const float> logits,
                              GenerateStats& stats) {
  text.tokens.push_back(token);
  const bool is_stop = text.options.stops_at(token);
  const bool goes_on = text.listener->token(text.number, {token, is_stop, logits});
  if (!is_stop) {
    ++stats.tokens;
    ++text.generated;
  }
  return !is_stop && goes_on && text.generated != text.options.max_tokens;
}

void Generator::Texts::forget() {
  while (!texts_.empty()) (void)drop(texts_.begin()->first);
}

void Generator::Texts::abandon(const std::exception_ptr& error) {
  std::vector<Text> all;
  while (!texts_.empty()) all.push_back(drop(texts_.begin()->first));
  for (const Text& text : all) text.listener->fail(text.number, error);
}

}  // namespace hyperslab::generate
