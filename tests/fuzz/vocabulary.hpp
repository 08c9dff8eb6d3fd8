// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/input.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/io/vocabulary_files.hpp"
#include "tokenizer/character_tokenizer.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::fuzz {

/// A text whose parts have other ids than the whole ends the process. That of a byte-level BPE is
/// cut for known split patterns, which a file need not have.
inline void check_cuts(const io::Tokenizer& tokenizer, std::string_view text) {
  if (dynamic_cast<const io::CharacterTokenizer*>(&tokenizer) == nullptr) return;
  const auto cut_of = [&](std::string_view part, std::size_t from) {
    return tokenizer.last_cut(part, from);
  };
  std::vector<std::int32_t> ids;
  for (const std::string_view part : io::cut_into_parts(text, 4, cut_of)) {
    const bool is_first = part.data() == text.data();
    const auto more =
        tokenizer.encode_part(part, is_first ? io::TextPlace::start : io::TextPlace::inside);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  if (ids != tokenizer.encode(text)) std::abort();
}

/// Opens the vocabulary in a folder, encodes a text with it and decodes some ids.
inline void use_vocabulary(const std::string& folder) {
  take_or_refuse({ExitCode::data}, [&] {
    const auto tokenizer = io::open_tokenizer(folder);
    for (const std::string_view text : {"It's 12 low lower <|endoftext|>\n \xC3\xA9\xFF",
                                        "low\n\n\n lower  w low  x\xE2\x96\x81low"}) {
      io::TextDecoder decoder(*tokenizer);
      for (const std::int32_t id : tokenizer->encode(text)) (void)decoder.next(id);
      check_cuts(*tokenizer, text);
    }
    const auto last =
        static_cast<std::int32_t>(std::min<std::int64_t>(tokenizer->vocabulary(), 1000));
    for (std::int32_t id = -1; id <= last; ++id) {
      (void)tokenizer->decode(id);
      (void)tokenizer->decode_first(id);
      (void)tokenizer->is_special(id);
    }
    (void)tokenizer->text_template();
    (void)io::read_vocabulary_files(folder);
  });
}

}  // namespace hyperslab::fuzz
