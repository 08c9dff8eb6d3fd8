// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace hyperslab::io {

/// A file of a vocabulary, whole.
struct VocabularyFile {
  std::string name;  ///< inside its folder: "tokenizer.json", "vocab.json", "merges.txt", ...
  std::string content;
};

/// The files of a vocabulary that open_tokenizer() takes, under names which make a folder that it
/// takes, too, and the settings beside them that other programs read (tokenizer_config.json, ...).
/// `bytes` has none. Throws Error(data) for a file that cannot be read.
[[nodiscard]] std::vector<VocabularyFile> read_vocabulary_files(const std::string& vocabulary);

}  // namespace hyperslab::io
