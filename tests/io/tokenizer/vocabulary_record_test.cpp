// SPDX-License-Identifier: Apache-2.0
// What token files keep of the vocabulary that made them.
#include "hyperslab/io/vocabulary_record.hpp"

#include <gmock/gmock.h>

#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

class VocabularyRecordTest : public VocabularyTest {
 protected:
  std::unique_ptr<io::TokenSource> tokenize(const std::string& vocabulary, const std::string& name,
                                            std::optional<std::int32_t> end = {}) {
    const std::vector inputs = {write("in.txt", "the cat")};
    io::tokenize_files(*io::open_tokenizer(vocabulary), inputs, path(name), {}, true, {}, end);
    return io::open_tokens({path(name)}, io::RawIds::uint16, 1000, 1);
  }
  std::string one_ = train("the the cat cat", 259, "one");
  std::string other_ = train("the dog dog", 260, "other");
};

TEST_F(VocabularyRecordTest, AFileOfAnotherVocabularyIsRefused) {
  const auto one = io::open_tokenizer(one_);
  const auto other = io::open_tokenizer(other_);
  for (const char* name : {"t.bin", "t.h5"}) {
    const auto tokens = tokenize(one_, name);
    io::require_same_vocabulary(*tokens, *one, one_);
    expect_error(ExitCode::data, {path(name), "'other' (260 ids)", "another one of 259"},
                 [&] { io::require_same_vocabulary(*tokens, *other, "other"); });
    const auto longer = tokenize(other_, name);
    expect_error(ExitCode::data, {path(name), "'one' (259 ids)", "another one of 260"},
                 [&] { io::require_same_vocabulary(*longer, *one, "one"); });
  }
}

TEST_F(VocabularyRecordTest, MoreTokensAfterTheSameAreTaken) {
  const auto tokens = tokenize(one_, "t.bin");
  auto file = json_of("one/tokenizer.json");
  file["added_tokens"].push_back({{"id", 259}, {"content", "<|im_end|>"}, {"special", true}});
  write("one/tokenizer.json", file.dump());

  const auto more = io::open_tokenizer(one_);
  EXPECT_EQ(more->vocabulary(), 260);
  io::require_same_vocabulary(*tokens, *more, one_);
}

TEST_F(VocabularyRecordTest, FilesWithoutOneAreTaken) {
  write("raw.bin", llmc(20240520, 1, 2, {1, 2}));
  const auto raw = io::open_tokens({path("raw.bin")}, io::RawIds::uint16, 1000, 1);
  EXPECT_TRUE(raw->vocabularies().empty());
  EXPECT_TRUE(tokenize(one_, "t.npy")->vocabularies().empty());
  io::require_same_vocabulary(*raw, *io::open_tokenizer(other_), other_);
}

TEST_F(VocabularyRecordTest, DecodingTakesTheEndThatTheFileNames) {
  const auto one = io::open_tokenizer(one_);
  const std::vector inputs = {write("t.jsonl", "{\"text\": \"the\"}\n{\"text\": \"cat\"}\n")};
  const std::int32_t line = io::find_token(*one, one_, "!");
  io::tokenize_files(*one, inputs, path("t.bin"), {}, true, {}, line);

  io::decode_files(*one, {path("t.bin")}, path("back.txt"));
  EXPECT_EQ(content("back.txt"), "the\n<|endoftext|>\ncat");
}

}  // namespace
}  // namespace hyperslab::test
