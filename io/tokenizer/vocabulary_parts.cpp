// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/vocabulary_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_problem.hpp"
#include "tokenizer/byte_text.hpp"

namespace hyperslab::io {

using nlohmann::json;

namespace {
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // the largest known ones have 35 MB
}  // namespace

void fail_vocabulary(const std::string& path, const std::string& text) {
  throw Error(ExitCode::data, fmt::format("vocabulary file '{}': {}", path, text));
}

std::string shown(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string out = "'";
  std::size_t end = std::min(text.size(), kShown);
  while (end > 0 && end < text.size() && (text[end] & 0xC0) == 0x80) --end;
  for (const char c : text.substr(0, end)) out += (c >= 0 && c < ' ') || c == 0x7F ? '?' : c;
  return out + (text.size() > end ? "...'" : "'");
}

std::string read_vocabulary_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail_vocabulary(path, "expected a file, found a folder; give its files");
  }
  try {
    return storage::read_text(path, kMostBytes);
  } catch (const storage::CallError& error) {
    fail_vocabulary(path, fmt::format("expected a readable file, found: {}; correct the path",
                                      std::strerror(error.error_number())));
  } catch (const Error& error) {  // a pipe, a device, or too large
    throw Error(ExitCode::data, std::string("vocabulary file ") + error.what());
  }
}

json read_json_file(const std::string& path) {
  const std::string text = read_vocabulary_text(path);
  if (is_too_deep(text)) {
    fail_vocabulary(path, fmt::format("expected JSON of at most {} levels, found more; give the "
                                      "file of a BPE",
                                      kDeepestJson));
  }
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    fail_vocabulary(
        path, fmt::format("expected JSON, found a {}; copy the file again", json_problem(error)));
  }
}

void VocabularyBuilder::add(const std::string& text, const json& id, std::string bytes) {
  const bool fits = id.is_number_integer() && id.get<std::int64_t>() >= 0 &&
                    id.get<std::int64_t>() < std::numeric_limits<std::int32_t>::max();
  if (!fits) {
    fail_vocabulary(path_,
                    fmt::format("token {}: expected an id from 0 on, found {}; copy the file "
                                "again",
                                shown(text), shown(id.dump())));
  }
  index_.emplace(text, entries_.size());
  entries_.push_back({id.get<std::int64_t>(), text, std::move(bytes)});
}

void VocabularyBuilder::add_tokens(const json& tokens, Writing writing) {
  if (!tokens.is_object()) {
    fail_vocabulary(path_, fmt::format("expected an object of tokens and ids, found {}; give a "
                                       "vocab.json or tokenizer.json of a BPE",
                                       tokens.type_name()));
  }
  for (const auto& [text, id] : tokens.items()) {
    add(text, id, writing == Writing::gpt2 ? text_to_bytes(text).value_or(text) : text);
  }
}

void VocabularyBuilder::add_literal(const std::string& text, const json& id) {
  const auto known = index_.find(text);
  if (known == index_.end()) return add(text, id, text);
  Entry& entry = entries_[known->second];
  if (id != entry.id) {
    fail_vocabulary(path_, fmt::format("token {}: expected one id, found {} and {}; correct one",
                                       shown(text), entry.id, shown(id.dump())));
  }
  entry.bytes = text;
}

std::int32_t VocabularyBuilder::find(const std::string& text, const std::string& file,
                                     const std::string& mark) const {
  const auto found = index_.find(text);
  if (found == index_.end()) {
    fail_vocabulary(file,
                    fmt::format("{}: expected tokens of the vocabulary, found {}; take tokens "
                                "and merges of one model",
                                mark, shown(text)));
  }
  return static_cast<std::int32_t>(entries_[found->second].id);
}

void VocabularyBuilder::add_merge(const std::string& left, const std::string& right,
                                  const std::string& file, const std::string& mark) {
  const MergeVocabulary::Merge merge{find(left, file, mark), find(right, file, mark),
                                     find(left + right, file, mark)};
  const auto key = (std::uint64_t{static_cast<std::uint32_t>(merge.left)} << 32) |
                   static_cast<std::uint32_t>(merge.right);
  const auto [known, is_new] = merge_index_.emplace(key, merges_.size());
  if (!is_new) {
    fail_vocabulary(file, fmt::format("{}: expected each merge once, found {} {} again (first as "
                                      "merge {}); delete one",
                                      mark, shown(left), shown(right), known->second + 1));
  }
  merges_.push_back(merge);
}

std::vector<std::string> VocabularyBuilder::take_tokens() {
  std::vector<std::string> tokens(entries_.size());
  std::vector<const Entry*> by_id(entries_.size());
  for (Entry& entry : entries_) {
    if (entry.id >= static_cast<std::int64_t>(entries_.size())) {
      fail_vocabulary(
          path_, fmt::format("expected the ids 0 to {} for its {} tokens, found id {} of "
                             "token {}; copy the file again",
                             entries_.size() - 1, entries_.size(), entry.id, shown(entry.text)));
    }
    const auto id = static_cast<std::size_t>(entry.id);
    if (by_id[id] != nullptr) {
      fail_vocabulary(
          path_, fmt::format("id {}: expected one token, found {} and {}; copy the file again", id,
                             shown(std::min(by_id[id]->text, entry.text)),
                             shown(std::max(by_id[id]->text, entry.text))));
    }
    by_id[id] = &entry;
    tokens[id] = std::move(entry.bytes);
  }
  return tokens;
}

std::int32_t VocabularyBuilder::id_of(const std::string& text) const {
  const auto found = index_.find(text);
  return found == index_.end() ? -1 : static_cast<std::int32_t>(entries_[found->second].id);
}

std::int32_t VocabularyBuilder::id_of_byte(std::uint8_t byte) const {
  const std::string text = bytes_to_text(std::string(1, static_cast<char>(byte)));
  const std::int32_t id = id_of(text);
  if (id < 0) {
    fail_vocabulary(path_,
                    fmt::format("expected a token for each byte, found none for byte 0x{:02x} "
                                "('{}'); give a byte-level vocabulary with all bytes",
                                byte, text));
  }
  return id;
}

std::array<std::int32_t, 256> VocabularyBuilder::byte_ids() const {
  std::array<std::int32_t, 256> ids{};
  for (std::size_t byte = 0; byte < ids.size(); ++byte) {
    ids[byte] = id_of_byte(static_cast<std::uint8_t>(byte));
  }
  return ids;
}

std::vector<bool> MergeVocabulary::special_marks() const {
  std::vector<bool> marks(tokens.size());
  if (ends.separator >= 0) marks.at(static_cast<std::size_t>(ends.separator)) = true;
  for (const auto* ids : {&special, &text_template.before, &text_template.after}) {
    for (const std::int32_t id : *ids) marks.at(static_cast<std::size_t>(id)) = true;
  }
  return marks;
}

std::optional<SpecialToken> MergeVocabulary::special_token(std::string_view name) const {
  for (const AddedToken& token : added) {
    if (!token.special || token.text != name) continue;
    return SpecialToken{token.id, token.takes_before, token.takes_after};
  }
  const std::vector<bool> marks = special_marks();
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (marks[id] && tokens[id] == name) {
      return SpecialToken{.id = static_cast<std::int32_t>(id)};
    }
  }
  return {};
}

std::string unparsed_special_token(const MergeVocabulary& vocabulary) {
  const auto is_unparsed = [](const AddedToken& token) {
    return token.special && token.single_word;
  };
  const auto found = std::ranges::find_if(vocabulary.added, is_unparsed);
  return found == vocabulary.added.end() ? std::string() : found->text;
}

void parse_special_tokens(const std::string& path, MergeVocabulary& vocabulary) {
  if (const std::string token = unparsed_special_token(vocabulary); !token.empty()) {
    fail_vocabulary(path, fmt::format("added token {}: expected single_word false of a special "
                                      "token that is looked for in text, found true; leave out "
                                      "--parse-special, or set it to false",
                                      shown(token)));
  }
  for (AddedToken& token : vocabulary.added) token.hidden = false;
}

MergeVocabulary VocabularyBuilder::finish() {
  MergeVocabulary out;
  out.tokens = take_tokens();
  out.merges = std::move(merges_);
  return out;
}

}  // namespace hyperslab::io
