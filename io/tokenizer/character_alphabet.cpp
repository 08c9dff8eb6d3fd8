// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/character_alphabet.hpp"

#include <algorithm>

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {

CharacterAlphabet::CharacterAlphabet(const CharacterVocabulary& vocabulary)
    : bytes_(vocabulary.byte_ids),
      has_all_bytes_(std::ranges::min(vocabulary.byte_ids) >= 0),
      unknown_(vocabulary.unknown),
      fuses_unknown_(vocabulary.fuses_unknown) {
  std::vector<bool> in_model(vocabulary.tokens.size(), true);
  for (const AddedToken& token : vocabulary.added) {
    if (!token.in_model) in_model[static_cast<std::size_t>(token.id)] = false;
  }
  ascii_.fill(-1);
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string& text = vocabulary.tokens[i];
    if (text.empty() || !in_model[i]) continue;
    const Character first = character_at(text, 0);
    if (first.bytes != text.size()) continue;
    const auto id = static_cast<std::int32_t>(i);
    if (first.code < ascii_.size()) {
      ascii_[first.code] = id;
    } else {
      wide_.emplace(first.code, id);
    }
  }
}

std::int32_t CharacterAlphabet::id_of(std::uint32_t code) const {
  if (code < ascii_.size()) return ascii_[code];
  const auto found = wide_.find(code);
  return found == wide_.end() ? -1 : found->second;
}

bool CharacterAlphabet::append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids) const {
  const auto id = [this](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
  if (std::ranges::any_of(bytes, [&](char byte) { return id(byte) < 0; })) return false;
  for (const char byte : bytes) ids.push_back(id(byte));
  return true;
}

/// An unknown character waits for the next known one, so that a run can become one token; bytes
/// do not end the wait (as in the package tokenizers).
void CharacterAlphabet::append(std::string_view piece, std::vector<std::int32_t>& ids) const {
  bool waits = false;
  const auto end_wait = [&] {
    if (waits) ids.push_back(unknown_);
    waits = false;
  };
  for (std::size_t at = 0; at < piece.size();) {
    const Character next = character_at(piece, at);
    const std::int32_t id = id_of(next.code);
    const std::string_view bytes = piece.substr(at, next.bytes);
    at += next.bytes;
    if (id >= 0) {
      end_wait();
      ids.push_back(id);
    } else if (!append_bytes(bytes, ids) && unknown_ >= 0) {
      if (!fuses_unknown_) end_wait();
      waits = true;
    }
  }
  end_wait();
}

}  // namespace hyperslab::io
