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

Generator::Texts::Texts(TextModel& model) : model_(model), scheduler_(limits_of(model)) {}

void Generator::Texts::begin(std::vector<std::int32_t> prompt, const SamplingOptions& options,
                             std::size_t number, TokenListener& listener) {
  const std::size_t id = begun_++;
  const std::int64_t length = std::ssize(prompt);
  std::map<std::size_t, Text> begun;
  begun.emplace(id, Text{std::move(prompt), options, number, &listener});
  scheduler_.add(id, length);
  texts_.merge(begun);  // nothing can fail once the scheduler knows the text
}

TextModel::Wanted Generator::Texts::wanted_by(const Text& text) {
  if (text.listener->wants_logits() || text.options.has_penalty()) return Wanted::logits;
  return text.options.is_greedy() ? Wanted::likeliest : Wanted::drawn;
}

/// Also of texts that wait for their first pass. A listener may be gone once its last text ended.
void Generator::Texts::end_unheard() {
  std::vector<std::size_t> unheard;
  for (const auto& [id, text] : texts_) {
    if (!text.listener->wants_tokens()) unheard.push_back(id);
  }
  for (const std::size_t id : unheard) {
    scheduler_.end(id);
    const Text ended = std::move(texts_.extract(id).mapped());
    ended.listener->end(ended.number);
  }
}

bool Generator::Texts::step(GenerateStats& stats) {
  const double start = now_seconds();
  end_unheard();
  const std::optional<SchedulerPass> pass = scheduler_.next();
  if (!pass) return false;
  std::vector<std::size_t> ids;
  Wanted wanted = pass->is_whole ? Wanted::likeliest : Wanted::nothing;
  std::size_t prompts = 0;  // texts that are read for the first time
  for (const ScheduledText* text : pass->texts) {
    ids.push_back(text->id);
    if (pass->is_whole) wanted = together(wanted, wanted_by(texts_.at(text->id)));
    if (!text->is_new) continue;
    ++prompts;
    if (pass->is_whole) stats.prompt_tokens += text->length - text->begin;
  }
  read(*pass, wanted);
  if (wanted != Wanted::nothing) {
    const std::vector<Choice> choices = choose(ids, wanted);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      take(ids[row], choices[row],
           wanted == Wanted::logits ? model_.logits(row) : std::span<const float>(), stats);
    }
  }
  const double seconds = now_seconds() - start;  // each text of a pass has an equal part of them
  const double share = static_cast<double>(prompts) / static_cast<double>(ids.size());
  stats.prompt_seconds += share * seconds;
  stats.seconds += (1 - share) * seconds;
  return true;
}

void Generator::Texts::read(const SchedulerPass& pass, TextModel::Wanted wanted) {
  std::vector<RowRead> rows;
  std::vector<ops::TokenChoice> choices;
  for (const ScheduledText* text : pass.texts) {
    Text& read = texts_.at(text->id);
    if (wanted == Wanted::drawn) choices.push_back(sampler_of(read).choice());
    const std::int64_t past = text->cached - pass.count;
    const std::span<const std::int32_t> tokens = read.tokens;
    rows.push_back({tokens.subspan(static_cast<std::size_t>(text->begin + past),
                                   static_cast<std::size_t>(pass.count)),
                    past, text->pages});
  }
  model_.read(rows, wanted, choices);
}

Sampler& Generator::Texts::sampler_of(Text& text) const {
  if (!text.sampler) {
    text.sampler = std::make_unique<Sampler>(text.options, text.number, model_.vocabulary());
    text.sampler->see(text.tokens);
  }
  return *text.sampler;
}

std::int32_t Generator::Texts::next_token(Text& text, std::size_t row, TextModel::Wanted wanted) {
  Sampler& sampler = sampler_of(text);
  if (wanted == Wanted::logits) return sampler.next(model_.logits(row));
  const std::int32_t token = model_.chosen(row);
  if (token < 0) {
    model_.fetch_logits();
    return sampler.next(model_.logits(row));  // for its error
  }
  sampler.take();
  return token;
}

/// The next token of every text of the newest pass. Samplers that are given logits look at whole
/// vocabularies, so that threads share the texts.
std::vector<Generator::Texts::Choice> Generator::Texts::choose(const std::vector<std::size_t>& ids,
                                                               TextModel::Wanted wanted) {
  std::vector<Choice> choices(ids.size());
  std::vector<Text*> texts;
  texts.reserve(ids.size());
  for (const std::size_t id : ids) texts.push_back(&texts_.at(id));
  constexpr std::int64_t kWorthThreads = std::int64_t{1} << 20;  // logits: they take a millisecond
  const bool shares =
      wanted == TextModel::Wanted::logits && std::ssize(ids) * model_.vocabulary() >= kWorthThreads;
  const int threads = shares ? model_.threads() : 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (std::ptrdiff_t i = 0; i < std::ssize(ids); ++i) {
    const auto row = static_cast<std::size_t>(i);
    try {
      choices[row].token = next_token(*texts[row], row, wanted);
    } catch (...) {
      choices[row].error = std::current_exception();
    }
  }
  return choices;
}

/// Adds the chosen token to a text and hands it to the listener.
void Generator::Texts::take(std::size_t id, Choice choice, std::span<const float> logits,
                            GenerateStats& stats) {
  Text& text = texts_.at(id);
  bool goes_on = false;
  try {
    goes_on = !choice.error && report(text, choice.token, logits, stats);
  } catch (...) {
    choice.error = std::current_exception();
  }
  if (goes_on) return scheduler_.grow(id);
  scheduler_.end(id);
  const Text ended = std::move(texts_.extract(id).mapped());
  choice.error ? ended.listener->fail(ended.number, choice.error)
               : ended.listener->end(ended.number);
}

bool Generator::Texts::report(Text& text, std::int32_t token, std::span<const float> logits,
                              GenerateStats& stats) {
  text.tokens.push_back(token);
  text.sampler->see({&token, 1});
  const bool is_stop = text.options.stops_at(token);
  const bool goes_on = text.listener->token(text.number, {token, is_stop, logits});
  if (!is_stop) {
    ++stats.tokens;
    ++text.generated;
  }
  return !is_stop && goes_on && text.generated != text.options.max_tokens;
}

void Generator::Texts::forget() {
  for (const auto& [id, text] : std::exchange(texts_, {})) scheduler_.end(id);
}

void Generator::Texts::abandon(const std::exception_ptr& error) {
  const std::map<std::size_t, Text> all = std::exchange(texts_, {});
  for (const auto& [id, text] : all) scheduler_.end(id);
  for (const auto& [id, text] : all) text.listener->fail(text.number, error);
}

}  // namespace hyperslab::generate
