// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tokenizer/merge_learner.hpp"

namespace hyperslab::io {

/// Writes vocab.json, merges.txt and tokenizer.json (the same once more, as Hugging Face's
/// tokenizers read it) to `folder`, which is made if it is missing. Special tokens get the last
/// ids. Each file is complete or untouched, and none is renamed before all are written. Throws
/// Error(storage).
void write_vocabulary(const LearnedMerges& learned, const std::vector<std::string>& specials,
                      const std::string& folder);

}  // namespace hyperslab::io
