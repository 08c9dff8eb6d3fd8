// SPDX-License-Identifier: Apache-2.0
// What ends a text by the files of a vocabulary, and what stands between documents.
#include "hyperslab/io/text_ends.hpp"

#include <gmock/gmock.h>

#include "hyperslab/io/vocabulary_files.hpp"
#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::ElementsAre;

/// A folder v with a vocabulary of bytes whose ids from 256 on are <|done|>, <|turn|> and </s>.
class TextEndsTest : public VocabularyTest {
 protected:
  TextEndsTest() { train("a b", 259, "v", {"<|done|>", "<|turn|>", "</s>"}); }
  void write_json(const std::string& name, const nlohmann::json& content) {
    write("v/" + name, content.dump());
  }
  [[nodiscard]] io::TextEnds ends() const { return io::open_tokenizer(path("v"))->text_ends(); }
  /// Ids of the documents "ab" and "cd", of bytes in GPT-2's order.
  Ids ids_of_documents(std::optional<std::int32_t> end = {}) {
    const std::vector inputs = {write("t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n")};
    io::tokenize_files(*io::open_tokenizer(path("v")), inputs, path("t.bin"), {}, true, {}, end);
    return read_all(*io::open_tokens({path("t.bin")}, io::RawIds::uint16, 259, 1));
  }
};

TEST_F(TextEndsTest, AKnownNameCountsWhereNoFileNamesAnEnd) {
  EXPECT_THAT(ends().ids, ElementsAre(258));
  write_json("tokenizer_config.json", {{"eos_token", nullptr}});
  write_json("config.json", {{"eos_token_id", nullptr}});
  EXPECT_EQ(ends().separator, 258);
}

TEST_F(TextEndsTest, AllFilesCountAndTheTokenizersEndSeparatesDocuments) {
  write_json("config.json", {{"eos_token_id", 65}});
  EXPECT_THAT(ends().ids, ElementsAre(65));
  write_json("generation_config.json", {{"eos_token_id", {257, 65, 900}}});
  EXPECT_THAT(ends().ids, ElementsAre(257, 65));
  write_json("tokenizer_config.json", {{"eos_token", {{"content", "<|done|>"}}}});

  EXPECT_THAT(ends().ids, ElementsAre(256, 257, 65));
  EXPECT_EQ(ends().separator, 256);
  EXPECT_EQ(io::open_tokenizer(path("v"))->end_of_text(), 256);
  EXPECT_THAT(ends().of_config, ElementsAre(65));
  EXPECT_THAT(ends().of_generation, ElementsAre(257, 65));
}

TEST_F(TextEndsTest, SpecialTokensMapNamesAnEndToo) {
  write_json("special_tokens_map.json", {{"eos_token", "<|turn|>"}});
  EXPECT_THAT(ends().ids, ElementsAre(257));
}

TEST_F(TextEndsTest, IdsOfADeckComeAfterThoseOfTheFiles) {
  write_json("tokenizer_config.json", {{"eos_token", "<|turn|>"}});
  const std::vector<std::int64_t> deck = {7, 257, 9};

  EXPECT_THAT(ends().with(deck).ids, ElementsAre(257, 7, 9));
  EXPECT_EQ(io::TextEnds().with(deck).separator, 7);
  EXPECT_EQ(io::TextEnds().with({}).separator, -1);
}

TEST_F(TextEndsTest, WhatIsNoIdIsRefused) {
  write_json("generation_config.json", {{"eos_token_id", {"<|done|>"}}});
  expect_error(ExitCode::data, {path("v/generation_config.json"), "eos_token_id", "a list of ids"},
               [&] { (void)ends(); });
}

TEST_F(TextEndsTest, TheCopyOfAVocabularyHasTheSameEnds) {
  write_json("config.json", {{"eos_token_id", {256, 5}}, {"hidden_size", 8}});
  write_json("generation_config.json", {{"eos_token_id", 257}, {"temperature", 0.6}});
  for (const io::VocabularyFile& file : io::read_vocabulary_files(path("v"))) {
    std::filesystem::create_directory(folder_ / "copy");
    write("copy/" + file.name, file.content);
  }

  EXPECT_EQ(io::open_tokenizer(path("copy"))->text_ends().ids, ends().ids);
  EXPECT_EQ(json_of("copy/config.json"), nlohmann::json({{"eos_token_id", {256, 5}}}));
}

TEST_F(TextEndsTest, StandBetweenDocuments) {
  write_json("tokenizer_config.json", {{"eos_token", "<|done|>"}});
  EXPECT_THAT(ids_of_documents(), ElementsAre(64, 65, 256, 66, 67, 256));
  EXPECT_THAT(ids_of_documents(257), ElementsAre(64, 65, 257, 66, 67, 257));
  EXPECT_THAT(ids_of_documents(-1), ElementsAre(64, 65, 66, 67));
}

TEST_F(TextEndsTest, DocumentsWithoutAnEndAreRefused) {
  train("a b", 257, "v", {"<|done|>"});
  expect_error(ExitCode::data, {"end of text", "--end-of-text", "--no-end-of-text"},
               [&] { (void)ids_of_documents(); });
  EXPECT_FALSE(std::filesystem::exists(path("t.bin")));
  EXPECT_THAT(ids_of_documents(256), ElementsAre(64, 65, 256, 66, 67, 256));

  const std::vector one = {write("one.txt", "ab")};
  EXPECT_EQ(io::tokenize_files(*io::open_tokenizer(path("v")), one, path("one.bin")), 2);
}

TEST_F(TextEndsTest, TokensAreFoundByTheirNames) {
  const auto tokenizer = io::open_tokenizer(path("v"));
  EXPECT_EQ(io::find_token(*tokenizer, "v", "<|turn|>"), 257);
  EXPECT_EQ(io::find_token(*tokenizer, "v", "a"), 64);
  expect_error(ExitCode::data, {"'v'", "'<|x|>'"},
               [&] { (void)io::find_token(*tokenizer, "v", "<|x|>"); });
}

}  // namespace
}  // namespace hyperslab::test
