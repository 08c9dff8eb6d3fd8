// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_cuts.hpp"

#include <algorithm>
#include <vector>

#include "tokenizer/character_normalizer.hpp"
#include "tokenizer/utf8.hpp"

namespace hyperslab::io {

CharacterCuts::CharacterCuts(const CharacterVocabulary& vocabulary,
                             const CharacterAlphabet& alphabet)
    : vocabulary_(vocabulary), alphabet_(alphabet) {
  learn_added_tokens();
  learn_merges();
  if (!vocabulary_.whole_pieces) return;
  // A part of a word may be a token, which is not merged, unless it is longer than all of them.
  constexpr std::size_t kMostBytes = 4;  // longest character, which a normalizer may shorten
  const auto can_be_found = [](const AddedToken& token) { return !token.hidden; };
  may_cut_words_ =
      !vocabulary_.splits_words() && std::ranges::none_of(vocabulary_.added, can_be_found);
  for (const std::string& token : vocabulary_.tokens) {
    margin_ = std::max(margin_, kMostBytes * token.size());
  }
}

void CharacterCuts::learn_added_tokens() {
  prefixes_pieces_ =
      vocabulary_.puts_prefix() &&
      !(vocabulary_.metaspace && vocabulary_.metaspace->prefix == Metaspace::Prefix::first);
  for (const AddedToken& token : vocabulary_.added) {
    const std::string text = vocabulary_.text_in_search(token);
    (token.normalized ? in_normal_added_ : in_added_).add_text(text);
    if (token.hidden) continue;
    ends_.insert(character_before(text, text.size()).code);
    any_takes_before_ = any_takes_before_ || token.takes_before;
    any_takes_after_ = any_takes_after_ || token.takes_after;
  }
}

void CharacterCuts::learn_merges() {
  std::vector<bool> apart(vocabulary_.tokens.size());  // tokens that stand for no text of theirs
  for (const std::int32_t id : vocabulary_.byte_ids) {
    if (id >= 0) apart[static_cast<std::size_t>(id)] = true;
  }
  if (vocabulary_.unknown >= 0) apart[static_cast<std::size_t>(vocabulary_.unknown)] = true;
  for (const MergeVocabulary::Merge& merge : vocabulary_.merges) {
    for (const std::int32_t id : {merge.left, merge.right, merge.result}) {
      if (apart[static_cast<std::size_t>(id)]) merges_characters_ = false;
    }
    merged_.add_text(vocabulary_.tokens[static_cast<std::size_t>(merge.result)]);
  }
}

bool CharacterCuts::may_cut(std::uint32_t left, std::uint32_t right) const {
  // Added tokens: none lies on both sides, takes white space from the other one, or ends here (a
  // piece would begin, and may get a prefix).
  if (in_added_.contains(left, right) || begins_piece_after(left)) return false;
  if (any_takes_after_ && (is_white_space(left) || is_white_space(right))) return false;
  if (any_takes_before_ && is_white_space(left)) return false;
  left = normalized(left, vocabulary_.normalizer);
  right = normalized(right, vocabulary_.normalizer);
  if (in_normal_added_.contains(left, right) || begins_piece_after(left)) return false;
  if (vocabulary_.metaspace) {
    const std::uint32_t mark = code_of(vocabulary_.metaspace->replacement);
    if (left == ' ') left = mark;
    if (right == ' ') right = mark;
    if (vocabulary_.metaspace->splits && right == mark) return true;
  }
  if (!vocabulary_.split_after.empty() && left == code_of(vocabulary_.split_after)) return true;
  return may_cut_words_ && !may_merge(left, right);
}

std::size_t CharacterCuts::last_cut(std::string_view text, std::size_t from) const {
  std::size_t end = text.size();
  if (may_cut_words_) {
    from = std::max(from, margin_ + 1);
    end -= std::min(end, margin_);
  }
  for (std::size_t i = end; i-- > from;) {
    const Character left = character_before(text, i);
    const Character right = character_at(text, i);
    const bool are_known = left.code < kNoCharacter && right.code < kNoCharacter;
    if (are_known && may_cut(left.code, right.code)) return i;
  }
  return text.npos;
}

}  // namespace hyperslab::io
