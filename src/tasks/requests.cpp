// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::tasks {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  // tokens of a task: 4 GiB

/// Characters for which Python's str.isspace() is true, in UTF-8.
constexpr std::array<std::string_view, 29> kSpaces = {
    " ",      "\t",     "\n",       "\v",       "\f",     "\r",     "\x1c",   "\x1d",
    "\x1e",   "\x1f",   "\xC2\x85", "\xC2\xA0", "\u1680", "\u2000", "\u2001", "\u2002",
    "\u2003", "\u2004", "\u2005",   "\u2006",   "\u2007", "\u2008", "\u2009", "\u200A",
    "\u2028", "\u2029", "\u202F",   "\u205F",   "\u3000"};

std::size_t length_without_spaces(std::string_view text) {
  while (true) {
    const auto* space =
        std::ranges::find_if(kSpaces, [&](std::string_view s) { return text.ends_with(s); });
    if (space == kSpaces.end()) return text.size();
    text.remove_suffix(space->size());
  }
}

/// Tokens before a context's tokens: the template's, else the end of text before an empty one.
std::vector<std::int32_t> prefix_of(const io::Tokenizer& tokenizer, bool is_empty) {
  std::vector<std::int32_t> prefix = tokenizer.text_template().before;
  if (!is_empty || !prefix.empty()) return prefix;
  if (tokenizer.end_of_text() < 0) {
    throw Error(ExitCode::data,
                "the context is empty, and the vocabulary has no token that begins a text");
  }
  return {tokenizer.end_of_text()};
}

}  // namespace

std::pair<std::string, std::string> move_spaces(std::string context, std::string ending) {
  const std::size_t kept = length_without_spaces(context);
  ending.insert(0, context, kept);
  context.resize(kept);
  return {std::move(context), std::move(ending)};
}

Request encode(const io::Tokenizer& tokenizer, const Choice& choice, std::string_view delimiter,
               std::int64_t context_tokens) {
  const auto [context, ending] =
      move_spaces(choice.context, std::string(delimiter) + choice.ending);
  const std::vector<std::int32_t> whole = tokenizer.encode(context + ending);
  const std::vector<std::int32_t> before = tokenizer.encode(context);
  const auto own = std::span(whole).subspan(std::min(before.size(), whole.size()));
  Request request;
  request.ending = std::ssize(own);
  if (request.ending > context_tokens) {
    throw Error(ExitCode::data,
                fmt::format("an ending has {} tokens, more than the model's context of {}",
                            request.ending, context_tokens));
  }
  request.ids = prefix_of(tokenizer, context.empty());
  request.ids.insert(request.ids.end(), before.begin(), before.end());
  request.ids.insert(request.ids.end(), own.begin(), own.end());
  const std::int64_t excess = std::ssize(request.ids) - (context_tokens + 1);
  if (excess > 0) request.ids.erase(request.ids.begin(), request.ids.begin() + excess);
  return request;
}

std::vector<Request> encode(const io::Tokenizer& tokenizer, const Task& task,
                            std::int64_t context_tokens) {
  std::vector<Request> requests;
  std::int64_t tokens = 0;
  for (const Question& question : task.questions) {
    try {
      for (const Choice& choice : question.choices) {
        requests.push_back(encode(tokenizer, choice, task.delimiter, context_tokens));
        tokens += std::ssize(requests.back().ids);
      }
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}:{}: {}", task.path, question.line, error.what()));
    }
    if (tokens > kMostTokens) {
      throw Error(ExitCode::data,
                  fmt::format("{}: has more than {} tokens; split it", task.path, kMostTokens));
    }
  }
  return requests;
}

void RequestSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  const Dim B = out.tokens.dims<2>("tokens")[0];
  if (out.first_keys) std::ranges::fill(out.first_keys.span<std::int32_t>(), 0);
  if (out.token_values) std::ranges::fill(out.token_values.span<float>(), 1.0F);
  for (Dim b = 0; b < B; ++b) {
    const auto tokens = out.tokens.slice(b, 1).span<std::int32_t>();
    const auto targets = out.targets.slice(b, 1).span<std::int32_t>();
    std::ranges::fill(tokens, 0);
    std::ranges::fill(targets, ops::kIgnoredTarget);
    if (first + b >= end) continue;
    const Request& of = request(first + b);
    require(of.positions() <= T_, "a request is longer than the samples");
    std::copy(of.ids.begin(), of.ids.end() - 1, tokens.begin());
    std::copy(of.ids.end() - of.ending, of.ids.end(),
              targets.begin() + (of.positions() - of.ending));
  }
}

}  // namespace hyperslab::tasks
