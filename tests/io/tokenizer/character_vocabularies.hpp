// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <fstream>

#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {

/// Tests with the tokenizers of character_golden.json.
class CharacterTest : public VocabularyTest {
 protected:
  CharacterTest() {
    std::ifstream file(HYPERSLAB_CHARACTER_GOLDEN_FILE);
    golden_ = nlohmann::json::parse(file);
  }
  /// The tokenizer.json of a kind; of those with few merges these are in the old writing.
  [[nodiscard]] nlohmann::json file_of(const std::string& name) const {
    const auto& kind = golden_["kinds"][name];
    nlohmann::json file = kind["settings"];
    const std::vector<std::string> without = kind["without"];
    std::int32_t id = 0;
    for (const std::string token : golden_["tokens"]) {
      if (std::ranges::find(without, token) == without.end()) file["model"]["vocab"][token] = id++;
    }
    nlohmann::json merges = golden_[kind["merges"].get<std::string>()];
    if (kind["merges"] == "merges") {
      for (auto& merge : merges) {
        merge = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
      }
    }
    file["model"]["merges"] = std::move(merges);
    return file;
  }
  [[nodiscard]] std::unique_ptr<io::Tokenizer> open(const std::string& name) {
    return io::open_tokenizer(write(name + ".json", file_of(name).dump()));
  }
  /// The bytes of a whole text, without special tokens.
  [[nodiscard]] static std::string text_of(const io::Tokenizer& tokenizer,
                                           const std::vector<std::int32_t>& ids) {
    io::TextDecoder decoder(tokenizer);
    std::string text;
    for (const std::int32_t id : ids) {
      if (!tokenizer.is_special(id)) text += decoder.next(id);
    }
    return text;
  }
  nlohmann::json golden_;
};

}  // namespace hyperslab::test
