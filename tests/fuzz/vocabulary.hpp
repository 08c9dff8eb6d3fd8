// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>

#include "fuzz/input.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/io/vocabulary_files.hpp"

namespace hyperslab::fuzz {

/// Opens the vocabulary in a folder, encodes a text with it and decodes some ids.
inline void use_vocabulary(const std::string& folder) {
  take_or_refuse({ExitCode::data}, [&] {
    const auto tokenizer = io::open_tokenizer(folder);
    for (const std::int32_t id :
         tokenizer->encode("It's 12 low lower <|endoftext|>\n \xC3\xA9\xFF")) {
      (void)tokenizer->decode(id);
    }
    const auto last =
        static_cast<std::int32_t>(std::min<std::int64_t>(tokenizer->vocabulary(), 1000));
    for (std::int32_t id = -1; id <= last; ++id) {
      (void)tokenizer->decode(id);
      (void)tokenizer->is_special(id);
    }
    (void)tokenizer->text_template();
    (void)io::read_vocabulary_files(folder);
  });
}

}  // namespace hyperslab::fuzz
