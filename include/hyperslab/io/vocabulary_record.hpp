// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// The record that a file of this vocabulary's tokens keeps: `end` follows each document; -1: none.
[[nodiscard]] VocabularyRecord record_of(const Tokenizer& tokenizer, std::int32_t end);

/// Throws Error(data) that names a file of `tokens` which was made with another vocabulary than
/// `tokenizer`, of the path `vocabulary`. One that has more tokens, after the same ones, is taken,
/// and so are files that keep no record of theirs.
void require_same_vocabulary(const TokenSource& tokens, const Tokenizer& tokenizer,
                             const std::string& vocabulary);

}  // namespace hyperslab::io
