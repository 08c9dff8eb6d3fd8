// SPDX-License-Identifier: Apache-2.0
// golden.json: merges by a plain trainer and ids by the package tokenizers (make_golden.py).
#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

class BpeGolden : public VocabularyTest {
 protected:
  BpeGolden() {
    std::ifstream file(HYPERSLAB_GOLDEN_FILE);
    golden_ = nlohmann::json::parse(file);
    train(golden_["text"], 500, "vocab", golden_["specials"]);
  }
  void expect_ids(const io::Tokenizer& tokenizer, const std::string& pattern) {
    for (const auto& one : golden_["cases"]) {
      const std::string text = one["text"];
      const std::vector<std::int32_t> expected = one[pattern];
      const auto ids = tokenizer.encode(text);
      EXPECT_EQ(ids, expected) << one["text"];
      EXPECT_EQ(decoded(tokenizer, ids), text);
    }
  }
  nlohmann::json golden_;
};

TEST_F(BpeGolden, MergesAreThoseOfThePlainTrainer) {
  std::string merges = "#version: 0.2\n";
  for (const std::string line : golden_["merges"]) merges += line + '\n';

  EXPECT_EQ(content("vocab/merges.txt"), merges);
}

TEST_F(BpeGolden, IdsOfGpt2sPatternInEveryFormOfFile) {
  for (const char* name : {"vocab", "vocab/vocab.json", "vocab/tokenizer.json"}) {
    const auto tokenizer = io::open_tokenizer(path(name));

    expect_ids(*tokenizer, "gpt2");
    EXPECT_EQ(tokenizer->vocabulary(), 500);
    EXPECT_EQ(tokenizer->end_of_text(), 498);
    EXPECT_EQ(tokenizer->decode(499), "<|pad|>");
  }
}

TEST_F(BpeGolden, IdsOfGpt2sFileNames) {
  const std::string merges = content("vocab/merges.txt");
  std::filesystem::create_directory(folder_ / "old");
  write("old/gpt2_vocab.json", content("vocab/vocab.json"));
  write("old/gpt2_merges.txt", merges.substr(merges.find('\n') + 1));  // no version line

  expect_ids(*io::open_tokenizer(path("old")), "gpt2");
}

TEST_F(BpeGolden, IdsOfLlama3sPattern) {
  expect_ids(*io::open_tokenizer(with_pattern("vocab", golden_["llama3"])), "llama3");
}

}  // namespace
}  // namespace hyperslab::test
