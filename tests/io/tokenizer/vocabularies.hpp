// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {

/// Tests with vocabularies trained or written on the spot.
class VocabularyTest : public FilesTest {
 protected:
  /// Trains on `text` into the folder `name` and gives its path.
  std::string train(const std::string& text, std::int64_t size, const std::string& name = "vocab",
                    const std::vector<std::string>& specials = {"<|endoftext|>"}) {
    io::VocabularyTraining training;
    training.size = size;
    training.inputs = {write(name + ".txt", text)};
    training.specials = specials;
    training.output = path(name);
    io::train_vocabulary(training);
    return path(name);
  }
  [[nodiscard]] nlohmann::json json_of(const std::string& name) const {
    return nlohmann::json::parse(content(name));
  }
  /// Writes `trained`/tokenizer.json once more with another split pattern.
  std::string with_pattern(const std::string& trained, const std::string& pattern) {
    auto file = json_of(trained + "/tokenizer.json");
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern", {{"Regex", pattern}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return write(trained + "_pattern.json", file.dump());
  }
};

inline std::string decoded(const io::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += tokenizer.decode(id);
  return text;
}

/// Random bytes of which most are few, so that pieces and pairs repeat; some are no UTF-8.
inline std::string random_bytes(std::mt19937& random, std::size_t size) {
  static const std::vector<std::string> kParts = {"a",
                                                  "b",
                                                  " ",
                                                  "  ",
                                                  "\n",
                                                  "'s",
                                                  "\xC3\xA9",
                                                  "\xE2\x82\xAC",
                                                  "\xF0\x9F\x98\x80",
                                                  "1",
                                                  "!",
                                                  "\r\n",
                                                  "the",
                                                  "\xE3\x80\x80",
                                                  "\xC2\xA0",
                                                  "'"};
  std::string text;
  while (text.size() < size) {
    const auto choice = random() % 20;
    text += choice < kParts.size() ? kParts[choice] : std::string(1, static_cast<char>(random()));
  }
  return text;
}

}  // namespace hyperslab::test
