// SPDX-License-Identifier: Apache-2.0
// character_golden.json: vocabulary, ids and texts by the package tokenizers
// (make_character_golden.py).
#include "io/tokenizer/character_vocabularies.hpp"

namespace hyperslab::test {
namespace {

class CharacterGolden : public CharacterTest {};

TEST_F(CharacterGolden, IdsAndTextsOfEveryKind) {
  const std::vector<std::string> cases = golden_["cases"];
  for (const auto& [name, kind] : golden_["kinds"].items()) {
    const auto tokenizer = open(name);

    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<std::int32_t> expected = kind["ids"][i];
      const auto ids = tokenizer->encode(cases[i]);
      const auto& text = kind["texts"][i];
      EXPECT_EQ(ids, expected) << name << " " << cases[i];
      EXPECT_EQ(text_of(*tokenizer, ids), text.is_null() ? cases[i] : text.get<std::string>())
          << name << " " << cases[i];
    }
  }
}

TEST_F(CharacterGolden, SpecialTokensAndTheirPlaces) {
  for (const auto& [name, kind] : golden_["kinds"].items()) {
    const auto tokenizer = open(name);

    EXPECT_EQ(tokenizer->end_of_text(), 2) << name;
    EXPECT_EQ(tokenizer->text_template().before, std::vector<std::int32_t>{1}) << name;
    EXPECT_TRUE(tokenizer->text_template().after.empty()) << name;
    for (const std::int32_t id : {0, 1, 2}) EXPECT_TRUE(tokenizer->is_special(id)) << name;
    for (const std::int32_t id : {-1, 3, 1 << 20}) EXPECT_FALSE(tokenizer->is_special(id)) << name;
    EXPECT_EQ(tokenizer->decode(1), "<s>") << name;
    EXPECT_EQ(tokenizer->decode(-1), "") << name;
    EXPECT_EQ(tokenizer->decode(1 << 20), "") << name;
  }
}

}  // namespace
}  // namespace hyperslab::test
