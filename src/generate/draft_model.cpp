// SPDX-License-Identifier: Apache-2.0
#include "draft_model.hpp"

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab::generate {
namespace {

using Wanted = TextModel::Wanted;

std::int64_t tokens_of(const Draft& draft) { return std::ssize(draft.text); }

}  // namespace

DraftModel::DraftModel(TextModel& model) : model_(model), pool_(model.cache().pages) {}

void DraftModel::end(std::size_t id) {
  const auto found = cached_.find(id);
  if (found == cached_.end()) return;
  pool_.give_back(found->second.pages);
  cached_.erase(found);
}

/// Forgets guesses that the text did not take.
void DraftModel::rewind(std::span<const std::int32_t> text, Cached& cached) {
  const std::span<const std::int32_t> said = text.subspan(static_cast<std::size_t>(cached.text));
  const auto held = std::ranges::mismatch(said, cached.guessed).in1 - said.begin();
  cached.tokens = std::min(cached.tokens, cached.text - cached.begin + held);
  cached.text = std::ssize(text);
  cached.guessed.clear();
}

/// Pages of texts that are not in this pass, which wait, if there are too few.
bool DraftModel::find_pages(std::int64_t count, std::vector<std::int32_t>& to,
                            std::span<const Draft> all) {
  if (pool_.take(count, to)) return true;
  std::vector<std::size_t> others;
  for (const auto& [id, cached] : cached_) {
    if (std::ranges::find(all, id, &Draft::id) == all.end()) others.push_back(id);
  }
  for (const std::size_t id : others) end(id);
  return pool_.take(count, to);
}

/// Makes room for a text and its guesses: if the context has none, only the newer half of it is
/// read. False: pages are missing, and there are no guesses for this text now.
bool DraftModel::prepare(Draft& draft, std::span<const Draft> all) {
  Cached& cached = cached_[draft.id];
  rewind(draft.text, cached);
  const std::int64_t half = std::max<std::int64_t>(1, model_.context() / 2);
  draft.most = std::min(draft.most, half);
  if (tokens_of(draft) - cached.begin + draft.most - 1 > model_.context()) {
    cached.begin = tokens_of(draft) - half;
    cached.tokens = 0;
    pool_.give_back(cached.pages);
  }
  const std::int64_t page = model_.cache().page_tokens();
  const std::int64_t tokens = tokens_of(draft) - cached.begin + draft.most - 1;
  return find_pages((tokens + page - 1) / page, cached.pages, all);
}

/// Tokens that all texts read together before their first guesses: two if a text has as many to
/// read, as after a draft that held; others read one of theirs again.
std::int64_t DraftModel::first_tokens(std::span<Draft* const> texts) const {
  bool is_one_late = false;
  for (const Draft* draft : texts) {
    const Cached& cached = cached_.at(draft->id);
    const std::int64_t tokens = tokens_of(*draft) - cached.begin;
    if (tokens < 2) return 1;
    is_one_late = is_one_late || tokens - cached.tokens == 2;
  }
  return is_one_late && std::ssize(texts) * 2 <= model_.pass_tokens() ? 2 : 1;
}

/// Reads a text until `unread` tokens or fewer are left.
void DraftModel::catch_up(const Draft& draft, std::int64_t unread) {
  Cached& cached = cached_.at(draft.id);
  const std::int64_t end = tokens_of(draft) - cached.begin - unread;
  while (cached.tokens < end) {
    const std::int64_t count = std::min(end - cached.tokens, model_.pass_tokens());
    const RowRead row = {draft.text.subspan(static_cast<std::size_t>(cached.begin + cached.tokens),
                                            static_cast<std::size_t>(count)),
                         cached.tokens, cached.pages};
    model_.read({&row, 1}, Wanted::nothing);
    cached.tokens += count;
  }
}

/// The last tokens of a text, or its last guess.
RowRead DraftModel::row_of(const Draft& draft, std::int64_t tokens) const {
  const Cached& cached = cached_.at(draft.id);
  const std::span<const std::int32_t> from =
      draft.tokens.empty() ? draft.text : std::span<const std::int32_t>(draft.tokens);
  return {from.last(static_cast<std::size_t>(tokens)),
          tokens_of(draft) - cached.begin + std::ssize(draft.tokens) - tokens, cached.pages};
}

void DraftModel::guess(Draft& draft, std::size_t row, Wanted wanted) const {
  std::int32_t token = -1;
  std::vector<double> weights;
  if (wanted == Wanted::likeliest) {
    token = model_.chosen(row);
  } else {
    token = draft.sampler->draft(model_.logits(row), draft.tokens, weights);
  }
  if (token < 0) {  // this model has diverged, and the other may go on
    draft.most = std::ssize(draft.tokens);
    return;
  }
  draft.tokens.push_back(token);
  if (draft.is_drawn) draft.weights.push_back(std::move(weights));
}

/// One guess of each text, which reads `tokens` tokens for it.
void DraftModel::guess_next(std::span<Draft* const> texts, std::int64_t tokens) {
  std::vector<RowRead> rows;
  Wanted wanted = Wanted::likeliest;
  for (const Draft* draft : texts) {
    rows.push_back(row_of(*draft, tokens));
    if (draft->needs_logits) wanted = Wanted::logits;
  }
  model_.read(rows, wanted);
  const int threads = wanted == Wanted::logits ? model_.threads() : 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (threads > 1)
  for (std::ptrdiff_t i = 0; i < std::ssize(texts); ++i) {
    guess(*texts[static_cast<std::size_t>(i)], static_cast<std::size_t>(i), wanted);
  }
}

void DraftModel::draft(std::span<Draft> drafts) {
  std::vector<Draft*> texts;
  for (Draft& draft : drafts) {
    if (draft.most > 0 && prepare(draft, drafts)) texts.push_back(&draft);
  }
  require(std::ssize(texts) <= model_.rows(), "drafts of more texts than were planned");
  const std::vector<Draft*> all = texts;
  std::int64_t tokens = first_tokens(texts);
  for (const Draft* draft : texts) catch_up(*draft, tokens);
  while (!texts.empty()) {
    guess_next(texts, tokens);
    tokens = 1;
    std::erase_if(texts,
                  [](const Draft* draft) { return std::ssize(draft->tokens) >= draft->most; });
  }
  for (const Draft* draft : all) {  // the last guess was not read
    Cached& cached = cached_.at(draft->id);
    cached.text = tokens_of(*draft);
    cached.guessed.assign(draft->tokens.begin(),
                          draft->tokens.end() - (draft->tokens.empty() ? 0 : 1));
    cached.tokens = cached.text - cached.begin + std::ssize(cached.guessed);
  }
}

}  // namespace hyperslab::generate
