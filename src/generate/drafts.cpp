// SPDX-License-Identifier: Apache-2.0
#include "drafts.hpp"

#include <algorithm>

namespace hyperslab::generate {
namespace {

constexpr std::ptrdiff_t kFewestTokens = 2;  // that a match has: a single token stands everywhere
constexpr std::ptrdiff_t kMostTokens = 8;    // longer matches say no more

/// The end of the best match, or 0.
std::ptrdiff_t end_of_match(std::span<const std::int32_t> text) {
  const auto size = std::ssize(text);
  const auto at = [&](std::ptrdiff_t i) { return text[static_cast<std::size_t>(i)]; };
  std::ptrdiff_t longest = kFewestTokens - 1;
  std::ptrdiff_t found = 0;
  for (std::ptrdiff_t end = size - 1; end > longest && longest < kMostTokens; --end) {
    if (at(end - 1) != at(size - 1)) continue;
    const std::ptrdiff_t most = std::min(kMostTokens, end);
    std::ptrdiff_t length = 1;
    while (length < most && at(end - 1 - length) == at(size - 1 - length)) ++length;
    if (length <= longest) continue;
    longest = length;
    found = end;
  }
  return found;
}

}  // namespace

std::vector<std::int32_t> look_up(std::span<const std::int32_t> text, std::int64_t most) {
  std::vector<std::int32_t> guesses;
  const auto end = static_cast<std::size_t>(end_of_match(text));
  if (end == 0) return guesses;
  for (std::size_t i = 0; i < static_cast<std::size_t>(most); ++i) {
    const std::size_t from = end + i;
    guesses.push_back(from < text.size() ? text[from] : guesses[from - text.size()]);
  }
  return guesses;
}

void PromptLookup::draft(std::span<Draft> drafts) {
  for (Draft& draft : drafts) {
    if (draft.most > 0) draft.tokens = look_up(draft.text, draft.most);
  }
}

std::int64_t DraftLength::next() {
  if (rests_ == 0) return length_;
  --rests_;
  return 0;
}

void DraftLength::record(std::int64_t drafted, std::int64_t accepted) {
  constexpr std::int64_t kLongestPause = 16;
  if (accepted == drafted) {
    length_ = std::min(most_, 2 * std::max(length_, drafted));
  } else if (drafted > 1) {
    length_ = accepted + 1;
  } else {
    rests_ = pause_;
    pause_ = std::min(kLongestPause, 2 * pause_);
  }
  if (accepted > 0) pause_ = 1;
}

}  // namespace hyperslab::generate
