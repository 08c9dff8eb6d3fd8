// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/vocabulary_record.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

/// FNV-1a of the bytes of the first `ids` tokens, each after its length; `end` is left out, since
/// files of one vocabulary spell it in several ways.
std::uint64_t fingerprint_of(const Tokenizer& tokenizer, std::int64_t ids, std::int32_t end) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001B3ULL; };
  for (std::int32_t id = 0; id < ids; ++id) {
    if (id == end) continue;
    const std::string token = tokenizer.decode(id);
    add(token.size());
    for (const char byte : token) add(static_cast<unsigned char>(byte));
  }
  return hash;
}

}  // namespace

VocabularyRecord record_of(const Tokenizer& tokenizer, std::int32_t end) {
  const std::int64_t ids = tokenizer.vocabulary();
  return {.ids = ids, .fingerprint = fingerprint_of(tokenizer, ids, end), .end = end};
}

void require_same_vocabulary(const TokenSource& tokens, const Tokenizer& tokenizer,
                             const std::string& vocabulary) {
  std::map<std::pair<std::int64_t, std::int32_t>, std::uint64_t> known;  // by first tokens, end
  for (const auto& [path, record] : tokens.vocabularies()) {
    const bool has_all = record.ids <= tokenizer.vocabulary();
    const std::pair key(record.ids, record.end);
    if (has_all && !known.contains(key)) {
      known[key] = fingerprint_of(tokenizer, record.ids, record.end);
    }
    if (has_all && known[key] == record.fingerprint) continue;
    throw Error(
        ExitCode::data,
        fmt::format("token file '{}': expected tokens of the vocabulary '{}' ({} ids), found those "
                    "of another one of {} ids; name that one, or tokenize the text again",
                    path, vocabulary, tokenizer.vocabulary(), record.ids));
  }
}

}  // namespace hyperslab::io
