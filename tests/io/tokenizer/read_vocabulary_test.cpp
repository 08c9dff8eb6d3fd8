// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include "hyperslab/io/vocabulary_files.hpp"
#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

using nlohmann::json;

class ReadVocabulary : public VocabularyTest {
 protected:
  ReadVocabulary() {
    train("the the cat", 260, "v");
    vocab_ = json_of("v/vocab.json");
    tokenizer_ = json_of("v/tokenizer.json");
    std::filesystem::remove(folder_ / "v" / "tokenizer.json");
  }
  /// `message` follows the name of the file or vocabulary `name`.
  void expect_named(const char* what, const std::string& name, const std::string& message) const {
    expect_refused(name, fmt::format("{} '{}': {}", what, path(name), message));
  }
  void expect_refused(const std::string& name, const std::string& message) const {
    expect_error(ExitCode::data, {message}, [&] { (void)io::open_tokenizer(path(name)); });
  }
  /// With `vocab` as v/vocab.json.
  void expect_vocab_refused(const std::string& vocab, const std::string& message) {
    write("v/vocab.json", vocab);
    expect_refused("v", fmt::format("vocabulary file '{}': {}", path("v/vocab.json"), message));
  }
  /// With `line` after the merges, of which there are three.
  void expect_merge_refused(const std::string& line, const std::string& message) {
    const std::string before = content("v/merges.txt");
    write("v/merges.txt", before + line + "\n");
    expect_refused("v",
                   fmt::format("vocabulary file '{}': line 5: {}", path("v/merges.txt"), message));
    write("v/merges.txt", before);
  }
  /// With a change to tokenizer.json.
  void expect_file_refused(const json& patch, const std::string& message) {
    auto file = tokenizer_;
    file.merge_patch(patch);
    write("t.json", file.dump());
    expect_named("vocabulary file", "t.json", message);
  }
  json vocab_;
  json tokenizer_;
};

TEST_F(ReadVocabulary, NamesPathsWithoutAVocabulary) {
  std::filesystem::create_directory(folder_ / "empty");

  expect_named("vocabulary", "none",
               "expected 'bytes', a folder or a tokenizer.json, found nothing");
  expect_named("vocabulary", "empty", "expected a folder with tokenizer.json or with vocab.json");
  expect_named("vocabulary file", "v.txt", "expected a folder, a tokenizer.json or a vocab.json");
  std::filesystem::remove(folder_ / "v" / "merges.txt");
  expect_refused("v",
                 fmt::format("vocabulary file '{}': expected a readable file, found: No such file "
                             "or directory; correct the path",
                             path("v/merges.txt")));
}

/// By what they are, with what to do instead.
TEST_F(ReadVocabulary, NamesFilesOfOtherKinds) {
  const std::vector<std::array<std::string, 3>> files = {
      {"tokenizer.model", "\n\x0E\n",
       "found tokenizer.model (SentencePiece's own format); convert"},
      {"tokenizer.model", "IQ== 0\nIg== 1\n", "found tokenizer.model (tiktoken's format); take"},
      {"spiece.model", "\n", "found spiece.model (SentencePiece's own format); convert it"},
      {"vocab.txt", "[PAD]\n", "found vocab.txt (WordPiece), which is not read; take a model"},
      {"tekken.json", "{}", "found tekken.json (Mistral's own format); take the tokenizer.json"},
      {"merges.txt", "a b\n", "found merges.txt alone, which belongs to a vocab.json"}};
  for (const auto& [name, content, message] : files) {
    std::filesystem::create_directory(folder_ / "other");
    write("other/" + name, content);

    expect_refused("other", message);
    expect_refused("other/" + name, message);

    std::filesystem::remove_all(folder_ / "other");
  }
  std::filesystem::create_directory(folder_ / "other");
  for (const auto& [content, message] :
       {std::pair("{}", "model: expected an object, found null; give the tokenizer.json of a BPE"),
        std::pair(R"({"model": "BPE"})", "model: expected an object, found string"),
        std::pair("[]", "the file: expected an object, found array")}) {
    write("other/tokenizer.json", content);
    expect_refused("other", message);
  }
}

TEST_F(ReadVocabulary, NamesTheLineOfBrokenJson) {
  expect_vocab_refused("{\"a\": 0,\n\"b\": }",
                       "expected JSON, found a parse error at line 2, column 6");
  expect_vocab_refused("", "expected JSON, found a parse error at line 1, column 1");
  expect_vocab_refused("[1]", "expected an object of tokens and ids, found array");
}

TEST_F(ReadVocabulary, DoesNotWaitForPipesOrDevices) {
  for (const char* name : {"v/vocab.json", "v/merges.txt"}) {
    const std::string before = content(name);
    std::filesystem::remove(path(name));
    ASSERT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    expect_refused("v", "expected a regular file");
    std::filesystem::remove(path(name));
    std::filesystem::create_symlink("/dev/zero", path(name));
    expect_refused("v", "expected a regular file");
    std::filesystem::remove(path(name));
    write(name, before);
  }
}

TEST_F(ReadVocabulary, RefusesDeepNesting) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  expect_vocab_refused(R"({"a":)" + deep + "}", "expected JSON of at most 64 levels");
  write("t.json", R"({"model":{},"normalizer":)" + deep + "}");
  expect_named("vocabulary file", "t.json", "expected JSON of at most 64 levels");
}

TEST_F(ReadVocabulary, NamesTokensWithBadIds) {
  auto vocab = vocab_;
  vocab["the"] = 0;
  expect_vocab_refused(vocab.dump(),
                       "id 0: expected one token, found '!' and 'the'; copy the file");
  vocab = vocab_;
  vocab["the"] = 1000;
  expect_vocab_refused(
      vocab.dump(),
      "expected the ids 0 to 259 for its 260 tokens, found id 1000 of token 'the'; copy the file");
  for (const json& id : {json(-1), json(1.5), json("7"), json(), json(std::int64_t{1} << 40)}) {
    vocab["the"] = id;
    expect_vocab_refused(vocab.dump(),
                         "token 'the': expected an id from 0 on, found '" + id.dump());
  }
  vocab = vocab_;
  vocab.erase("Ċ");
  vocab["x\ny"] = vocab_["Ċ"];
  expect_vocab_refused(vocab.dump(),
                       "expected a token for each byte, found none for byte 0x0a ('Ċ')");
}

TEST_F(ReadVocabulary, NamesTheLineOfABadMerge) {
  expect_merge_refused("q z",
                       "expected tokens of the vocabulary, found 'qz'; take tokens and merges");
  expect_merge_refused("zz q", "expected tokens of the vocabulary, found 'zz'");
  expect_merge_refused("t h", "expected each merge once, found 't' 'h' again (first as merge 1)");
  for (const char* line : {"abc", "a b c", " a", "a "}) {
    expect_merge_refused(line,
                         std::string("expected two tokens separated by a space, found '") + line);
  }
}

TEST_F(ReadVocabulary, ReadsCarriageReturnsAndEmptyLines) {
  const auto expected = io::open_tokenizer(path("v"))->encode("the cat");
  std::string merges;
  for (const char c : content("v/merges.txt")) merges += c == '\n' ? "\r\n" : std::string(1, c);
  write("v/merges.txt", merges + "\r\n\n");

  EXPECT_EQ(io::open_tokenizer(path("v"))->encode("the cat"), expected);
}

TEST_F(ReadVocabulary, FilesMakeTheSameVocabularyElsewhere) {
  const auto copied = [&](const std::string& from, const std::string& to) {
    std::filesystem::create_directory(folder_ / to);
    std::vector<std::string> names;
    for (const auto& file : io::read_vocabulary_files(path(from))) {
      write(to + "/" + file.name, file.content);
      names.push_back(file.name);
    }
    EXPECT_EQ(io::open_tokenizer(path(to))->encode("the cat"),
              io::open_tokenizer(path(from))->encode("the cat"));
    return names;
  };
  write("gpt2_vocab.json", content("v/vocab.json"));
  write("gpt2_merges.txt", content("v/merges.txt"));
  write("other.json", tokenizer_.dump());
  const std::vector<std::string> pair = {"vocab.json", "merges.txt"};

  EXPECT_EQ(copied("v", "a"), pair);
  EXPECT_EQ(copied("gpt2_vocab.json", "b"), pair);
  EXPECT_EQ(copied("other.json", "c"), std::vector<std::string>{"tokenizer.json"});
  write("v/tokenizer_config.json", "{}");
  write("v/tokenizer.json", tokenizer_.dump());
  EXPECT_EQ(copied("v", "d"),
            (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_TRUE(io::read_vocabulary_files("bytes").empty());
  expect_error(ExitCode::data, {"none"}, [&] { (void)io::read_vocabulary_files(path("none")); });
}

TEST_F(ReadVocabulary, RefusesTokenizersThatAreNotPlainByteLevelBpe) {
  expect_file_refused({{"model", {{"type", "Unigram"}}}}, "model.type: expected BPE, found");
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    expect_file_refused({{"model", {{"type", type}}}, {"normalizer", {{"type", "BertNormalizer"}}}},
                        fmt::format("model.type: expected BPE, found '{}'; other kinds are not "
                                    "read: take a model whose tokenizer is a BPE",
                                    type));
  }
  expect_file_refused({{"model", {{"type", nullptr}, {"vocab", json::array({1})}}}},
                      "model.type: expected BPE, found a vocabulary of scores ('Unigram')");
  expect_file_refused({{"model", {{"vocab", 7}}}},
                      "model.vocab: expected an object of tokens and ids, found '7'");
  expect_file_refused({{"model", {{"dropout", 0.5}}}},
                      "model.dropout: expected null, as equal texts have equal ids, found '0.5'; "
                      "set it to null");
  expect_file_refused({{"model", {{"end_of_word_suffix", "</w>"}}}},
                      "model.end_of_word_suffix: expected \"\", found '\"</w>\"'");
  expect_file_refused({{"model", {{"byte_fallback", true}}}},
                      "model.byte_fallback: expected false, found 'true'");
  expect_file_refused({{"decoder", {{"type", "WordPiece"}}}},
                      "decoder: expected null or ByteLevel, found");
  expect_file_refused({{"pre_tokenizer", nullptr}},
                      "pre_tokenizer: expected type ByteLevel, found");
  const json digits = {{"type", "Digits"}};
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  expect_file_refused(
      {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}}}},
      "pre_tokenizer: expected ByteLevel, or a Sequence of Split and ByteLevel, "
      "found '[\"Digits\",\"ByteLevel\"]'");
  expect_file_refused({{"model", {{"merges", 7}}}}, "model.merges: expected a list, found '7'");
  expect_file_refused({{"model", {{"merges", {"t h", "t"}}}}},
                      "model.merges[1]: expected two tokens, found");
  expect_file_refused({{"model", {{"merges", json::array({json::array({"t", "zz"})})}}}},
                      "model.merges[0]: expected tokens of the vocabulary, found 'zz'");
  expect_file_refused({{"normalizer", {{"type", "Lowercase"}}}},
                      "normalizer: expected null or NFC, found");
  expect_file_refused({{"pre_tokenizer", {{"type", "Whitespace"}}}},
                      "pre_tokenizer: expected type ByteLevel, found");
  expect_file_refused({{"pre_tokenizer", {{"add_prefix_space", true}}}},
                      "pre_tokenizer.add_prefix_space: expected false, found 'true'");
  expect_file_refused({{"added_tokens", {{{"id", 1}, {"content", "<|endoftext|>"}}}}},
                      "token '<|endoftext|>': expected one id, found 259 and '1'");
  expect_file_refused({{"added_tokens", {{{"id", 260}, {"content", "x y"}, {"lstrip", true}}}}},
                      "added_tokens[0].lstrip: expected false, found");
  expect_file_refused({{"added_tokens", {7}}},
                      "added_tokens[0]: expected an object with content and id, found '7'");
}

TEST_F(ReadVocabulary, NamesTheFileOfABrokenPattern) {
  write("v/tokenizer.json", tokenizer_.dump());
  std::filesystem::rename(with_pattern("v", "(a"), path("v/tokenizer.json"));

  expect_refused("v", fmt::format("vocabulary file '{}': pre_tokenizer: expected a regular "
                                  "expression of PCRE2, found '(a'",
                                  path("v/tokenizer.json")));
}

TEST_F(ReadVocabulary, ReadsMergesAsPairsAndLiteralTokens) {
  auto file = tokenizer_;
  for (auto& merge : file["model"]["merges"]) {
    const std::string line = merge;
    merge = {line.substr(0, line.find(' ')), line.substr(line.find(' ') + 1)};
  }
  file["added_tokens"].push_back({{"id", 260}, {"content", "<é 世>"}, {"special", true}});
  const auto tokenizer = io::open_tokenizer(write("pairs.json", file.dump()));

  EXPECT_EQ(tokenizer->encode("the cat"), io::open_tokenizer(path("v"))->encode("the cat"));
  EXPECT_EQ(tokenizer->decode(260), "<é 世>");
  for (const std::int32_t id : {-1, 0, 258, 261}) EXPECT_FALSE(tokenizer->is_special(id)) << id;
  for (const std::int32_t id : {259, 260}) EXPECT_TRUE(tokenizer->is_special(id)) << id;
}

TEST_F(ReadVocabulary, OnlyTheEndOfTextIsSpecialIfNoFileSaysMore) {
  for (const auto& [name, end] :
       {std::pair(path("v"), 259), std::pair(std::string("bytes"), 256)}) {
    const auto tokenizer = io::open_tokenizer(name);
    for (std::int32_t id = -1; id <= tokenizer->vocabulary(); ++id) {
      EXPECT_EQ(tokenizer->is_special(id), id == end) << name << " " << id;
    }
  }
}

TEST_F(ReadVocabulary, FindsTheTokenThatEndsADocument) {
  auto file = tokenizer_;
  file["added_tokens"] = json::array();
  file["model"]["vocab"].erase("<|endoftext|>");
  file["model"]["vocab"]["<|end_of_text|>"] = 259;
  EXPECT_EQ(io::open_tokenizer(write("a.json", file.dump()))->end_of_text(), 259);
  file["model"]["vocab"].erase("<|end_of_text|>");
  EXPECT_EQ(io::open_tokenizer(write("b.json", file.dump()))->end_of_text(), -1);
}

}  // namespace
}  // namespace hyperslab::test
