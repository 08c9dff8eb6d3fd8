// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/train/evaluation.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::train {
namespace {

bool is_space(char c) { return std::string_view(" \t\n\v\f\r").find(c) != std::string_view::npos; }

/// The text of one token.
struct TokenText {
  TokenText() = default;
  explicit TokenText(std::string_view text)
      : bytes(std::ssize(text)), line_ends(std::ranges::count(text, '\n')) {
    for (const char c : text) {
      words += !ends_in_word && !is_space(c) ? 1 : 0;
      ends_in_word = !is_space(c);
    }
    begins_in_word = !text.empty() && !is_space(text.front());
  }

  std::int64_t bytes = 0;
  std::int64_t line_ends = 0;
  std::int64_t words = 0;  ///< after white space
  bool begins_in_word = false;
  bool ends_in_word = false;
};

class TokenTexts {
 public:
  explicit TokenTexts(const io::Tokenizer& tokenizer) {
    for (std::int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
      const bool is_special = tokenizer.is_special(id);
      texts_.push_back(is_special ? TokenText() : TokenText(tokenizer.decode(id)));
      first_texts_.push_back(is_special ? TokenText() : TokenText(tokenizer.decode_first(id)));
      is_special_.push_back(is_special);
    }
  }

  void add(std::int32_t before, std::int32_t target, TextAmount& to) const {
    if (!has(target)) {
      throw Error(ExitCode::data,
                  fmt::format("the evaluated tokens have id {}, but data.vocabulary has only {} "
                              "ids; give the vocabulary that made them, or null",
                              target, texts_.size()));
    }
    const bool begins = has(before) && is_special_[static_cast<std::size_t>(before)];
    const TokenText& text = (begins ? first_texts_ : texts_)[static_cast<std::size_t>(target)];
    const bool goes_on =
        text.begins_in_word && has(before) && texts_[static_cast<std::size_t>(before)].ends_in_word;
    to.bytes += static_cast<double>(text.bytes);
    to.words += static_cast<double>(text.words - (goes_on ? 1 : 0));
    to.line_ends += static_cast<double>(text.line_ends);
  }

 private:
  [[nodiscard]] bool has(std::int32_t id) const { return id >= 0 && id < std::ssize(texts_); }

  std::vector<TokenText> texts_;
  std::vector<TokenText> first_texts_;  ///< after a special token, where a text begins
  std::vector<bool> is_special_;
};

}  // namespace

TextAmount count_text(const io::TokenSamples& samples, std::int64_t count,
                      const io::Tokenizer& tokenizer, comm::World& world) {
  TextAmount mine;
  comm::agree(world, [&] {
    const Pause pause(world.activity(), "counting the validation text");  // the source may be large
    const TokenTexts texts(tokenizer);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples.targets()));
    std::vector<std::int32_t> targets(tokens.size());
    for (std::int64_t index = world.rank(); index < count; index += world.size()) {
      samples.read(index, tokens, targets);
      for (std::size_t i = 0; i < targets.size(); ++i) {
        if (targets[i] != ops::kIgnoredTarget) texts.add(tokens[i], targets[i], mine);
      }
    }
  });
  return {world.sum(mine.bytes), world.sum(mine.words), world.sum(mine.line_ends)};
}

}  // namespace hyperslab::train
