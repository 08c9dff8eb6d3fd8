// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::generate {

/// The tokens of texts to continue. `special_tokens`: with those that the vocabulary puts before
/// every text. An empty text is the beginning of a document, the separator of `ends`. Throws
/// Error(usage) if a prompt is empty and there is no such token.
[[nodiscard]] Prompts encode_prompts(const io::Tokenizer& tokenizer, const io::TextEnds& ends,
                                     const std::vector<std::string>& texts, bool special_tokens);

}  // namespace hyperslab::generate
