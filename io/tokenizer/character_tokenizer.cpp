// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "tokenizer/character_normalizer.hpp"
#include "tokenizer/utf8.hpp"

namespace hyperslab::io {

CharacterTokenizer::CharacterTokenizer(CharacterVocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      special_(vocabulary_.special_marks()),
      alphabet_(vocabulary_),
      tables_(vocabulary_, alphabet_, false),
      cuts_(vocabulary_, alphabet_),
      texts_(vocabulary_) {
  for (const bool special : {true, false}) {  // a special token hides an equal one
    for (const AddedToken& token : vocabulary_.added) {
      if (token.special != special) continue;
      (token.normalized ? normal_added_ : added_).add(token, vocabulary_.text_in_search(token));
    }
  }
  if (!vocabulary_.whole_pieces) return;
  std::vector<bool> added_alone(vocabulary_.tokens.size());
  for (const AddedToken& token : vocabulary_.added) {
    if (!token.in_model) added_alone[static_cast<std::size_t>(token.id)] = true;
  }
  for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    if (added_alone[id]) continue;
    whole_.emplace(vocabulary_.tokens[id], static_cast<std::int32_t>(id));
  }
}

std::vector<std::int32_t> CharacterTokenizer::encode_part(std::string_view text,
                                                          TextPlace place) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3);
  auto loan = workers_.lend([this] { return std::make_unique<Worker>(tables_); });
  Worker& worker = loan.worker();
  added_.split(text, worker.parts);
  for (const AddedTokenSearch::Part& part : worker.parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const bool is_first = part.text.data() == text.data();
    append_piece(part.text, is_first ? place : TextPlace::after_token, worker, ids);
  }
  return ids;
}

void CharacterTokenizer::append_piece(std::string_view text, TextPlace place, Worker& worker,
                                      std::vector<std::int32_t>& ids) const {
  const std::string_view normal =
      normalized(text, vocabulary_.normalizer, place != TextPlace::inside, worker.normal);
  normal_added_.split(normal, worker.normal_parts);
  for (const AddedTokenSearch::Part& part : worker.normal_parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const bool is_first = part.text.data() == normal.data();
    append_words(part.text, is_first ? place : TextPlace::after_token, worker, ids);
  }
}

void CharacterTokenizer::append_words(std::string_view text, TextPlace place, Worker& worker,
                                      std::vector<std::int32_t>& ids) const {
  if (vocabulary_.metaspace) {
    const auto& [replacement, prefix, splits] = *vocabulary_.metaspace;
    const bool has_space = text.starts_with(' ') || text.starts_with(replacement);
    const bool may_prefix = (prefix == Metaspace::Prefix::always && place != TextPlace::inside) ||
                            (prefix == Metaspace::Prefix::first && place == TextPlace::start);
    worker.spaced.clear();
    if (may_prefix && !has_space) worker.spaced = replacement;
    append_replaced(text, " ", replacement, worker.spaced);
    text = worker.spaced;
  }
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of_word(text, begin);
    append_word(text.substr(begin, end - begin), worker, ids);
    begin = end;
  }
}

std::size_t CharacterTokenizer::end_of_word(std::string_view text, std::size_t begin) const {
  std::size_t end = text.npos;
  if (vocabulary_.metaspace && vocabulary_.metaspace->splits) {
    end = text.find(vocabulary_.metaspace->replacement, begin + 1);
  } else if (!vocabulary_.split_after.empty()) {
    end = text.find(vocabulary_.split_after, begin);
    if (end != text.npos) end += vocabulary_.split_after.size();
  }
  return std::min(end, text.size());
}

void CharacterTokenizer::append_word(std::string_view word, Worker& worker,
                                     std::vector<std::int32_t>& ids) const {
  if (!whole_.empty()) {
    const auto found = whole_.find(word);
    if (found != whole_.end()) return ids.push_back(found->second);
  }
  std::size_t begin = 0;
  std::uint32_t left = 0;
  for (std::size_t at = 0; at < word.size();) {
    const Character right = character_at(word, at);
    if (at > begin && !cuts_.may_merge(left, right.code)) {
      worker.encoder.append(word.substr(begin, at - begin), ids);
      begin = at;
    }
    left = right.code;
    at += right.bytes;
  }
  worker.encoder.append(word.substr(begin), ids);
}

std::string CharacterTokenizer::decode(std::int32_t id) const {
  return id < 0 || id >= vocabulary() ? std::string() : texts_.inside(id);
}

std::string CharacterTokenizer::decode_first(std::int32_t id) const {
  return id < 0 || id >= vocabulary() ? std::string() : texts_.first(id);
}

bool CharacterTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary() && special_[static_cast<std::size_t>(id)];
}

}  // namespace hyperslab::io
