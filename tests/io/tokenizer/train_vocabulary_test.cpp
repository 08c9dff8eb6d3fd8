// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

class TrainVocabulary : public VocabularyTest {
 protected:
  /// The lines of merges.txt after training `merges` merges.
  std::string merges(const std::string& text, std::int64_t count,
                     const std::vector<std::string>& specials = {"<|endoftext|>"}) {
    train(text, 256 + static_cast<std::int64_t>(specials.size()) + count, "vocab", specials);
    const std::string lines = content("vocab/merges.txt");
    return lines.substr(lines.find('\n') + 1);
  }
  void expect_refused(ExitCode code, std::initializer_list<std::string> parts,
                      const io::VocabularyTraining& training) const {
    const std::size_t before = number_of_files();
    expect_error(code, parts, [&] { io::train_vocabulary(training); });
    EXPECT_EQ(number_of_files(), before);
  }
};

TEST_F(TrainVocabulary, MergesTheMostFrequentPairFirst) {
  // low x5, lower x2, widest x3, newest x6: st 9, then e+st 9, o+w 7, l+ow 7, w+est 9 after est.
  const std::string text =
      "low low low low low lower lower widest widest widest newest newest newest newest newest "
      "newest";

  EXPECT_EQ(merges(text, 6), "s t\ne st\no w\nl ow\nw est\nn e\n");
}

TEST_F(TrainVocabulary, OfEquallyFrequentPairsTheGreaterBytesComeFirst) {
  EXPECT_EQ(merges("ab ba", 1), "b a\n");
  EXPECT_EQ(merges("ab,ac", 2), "a c\na b\n");          // the right token decides
  EXPECT_EQ(merges("xa\xC3\xA9", 1), "Ã ©\n");          // bytes count as 0 to 255
  EXPECT_EQ(merges("abab,xyz,xyz", 2), "y z\nx yz\n");  // x yz (2) before a b (2)
}

TEST_F(TrainVocabulary, OverlappingPairsMergeFromTheLeft) {
  EXPECT_EQ(merges("aaaaa", 3), "a a\naa aa\naaaa a\n");
}

TEST_F(TrainVocabulary, EndsWhenNoPairIsLeft) {
  io::VocabularyTraining training;
  training.size = 1000;
  training.inputs = {write("in.txt", "abc")};
  training.output = path("vocab");

  EXPECT_EQ(io::train_vocabulary(training), 256 + 2 + 1);
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  EXPECT_EQ(tokenizer->encode("abc"), std::vector<std::int32_t>{257});
  EXPECT_EQ(tokenizer->end_of_text(), 258);
}

TEST_F(TrainVocabulary, NoPairThatNeverOccursIsMerged) {
  // Merging a a in aaaa makes the pairs (aa, a) and (a, aa) and takes them apart again.
  EXPECT_EQ(merges("aaaa", 100), "a a\naa aa\n");
  EXPECT_EQ(io::open_tokenizer(path("vocab"))->vocabulary(), 256 + 2 + 1);
  EXPECT_EQ(merges("abababab cdcdcd", 100),
            "a b\nc d\nab ab\ncd cd\ncdcd cd\nabab abab\nĠ cdcdcd\n");
}

TEST_F(TrainVocabulary, LeavesEmptyInputsOutAmongOthers) {
  io::VocabularyTraining training;
  training.size = 258;
  training.inputs = {write("empty.txt", ""), write("in.txt", "abab")};
  training.output = path("vocab");

  EXPECT_EQ(io::train_vocabulary(training), 258);
}

TEST_F(TrainVocabulary, NothingToLearnGivesBytes) {
  EXPECT_EQ(merges("a", 10), "");
  EXPECT_EQ(merges("a b c", 0), "");
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  EXPECT_EQ(tokenizer->encode("! "), (std::vector<std::int32_t>{0, 220}));  // GPT-2's order
}

TEST_F(TrainVocabulary, SpecialTokensSplitTheTextAndAreNeverMerged) {
  const std::string text = "ab<|x|>cd ab<|x|>cd<|xy|>ab";

  EXPECT_EQ(merges(text, 20, {"<|x|>", "<|xy|>"}), "a b\nc d\nĠ ab\n");
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  EXPECT_EQ(tokenizer->decode(259), "<|x|>");
  EXPECT_EQ(tokenizer->decode(260), "<|xy|>");
  EXPECT_EQ(tokenizer->end_of_text(), -1);
}

TEST_F(TrainVocabulary, TheLongestSpecialTokenIsTaken) {
  EXPECT_EQ(merges("<|a|><|a|>bc<|a|>bc", 10, {"<|a|>", "<|a|>bc"}), "");
}

TEST_F(TrainVocabulary, ThreadsAndTheOrderOfFilesDoNotMatter) {
  std::mt19937 random(1);
  io::VocabularyTraining training;
  training.size = 700;
  training.inputs = {write("a.txt", random_bytes(random, 3 << 20)),
                     write("b.txt", random_bytes(random, 1 << 20)), write("c.txt", "\n")};
  const int before = omp_get_max_threads();

  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    training.output = path("v" + std::to_string(threads));
    EXPECT_EQ(io::train_vocabulary(training), 700);
    std::ranges::reverse(training.inputs);
  }
  omp_set_num_threads(before);

  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json"}) {
    const std::string one = content(std::string("v1/") + name);
    EXPECT_FALSE(one.empty());
    EXPECT_TRUE(content(std::string("v2/") + name) == one);
    EXPECT_TRUE(content(std::string("v5/") + name) == one);
  }
}

TEST_F(TrainVocabulary, RefusesWhatCannotBe) {
  const io::VocabularyTraining good{300, {write("in.txt", "text")}, {"<|endoftext|>"}, path("v")};
  auto training = good;
  training.size = 256;
  expect_refused(ExitCode::usage,
                 {"--train-vocab 256: expected 257 (256 bytes and 1 special tokens) to 16777216; "
                  "choose a size in between"},
                 training);
  training = good;
  training.inputs = {};
  expect_refused(ExitCode::usage, {"--input"}, training);
  for (const char* special : {"", "x", "a b", "\xC3\xA9\xC3\xA9"}) {
    training = good;
    training.specials = {special};
    expect_refused(ExitCode::usage,
                   {std::string("--special '") + special +
                    "': expected two or more ASCII characters without white space"},
                   training);
  }
  training = good;
  training.specials = {"<a>", "<b>", "<a>"};
  expect_refused(ExitCode::usage, {"--special '<a>' is given twice"}, training);
  training = good;
  training.inputs.push_back(path("missing.txt"));
  expect_refused(ExitCode::data, {path("missing.txt"), "No such file"}, training);
  training = good;
  training.inputs = {write("empty.txt", "")};
  expect_refused(ExitCode::data, {path("empty.txt"), "an empty file"}, training);
}

TEST_F(TrainVocabulary, LeavesNothingIfItCannotWrite) {
  io::VocabularyTraining training{300, {write("in.txt", "text")}, {}, path("in.txt/v")};
  expect_refused(ExitCode::storage, {path("in.txt/v"), "Not a directory"}, training);

  std::filesystem::create_directories(folder_ / "v" / "tokenizer.json");
  training.output = path("v");
  expect_refused(ExitCode::storage, {path("v/tokenizer.json"), "Is a directory"}, training);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "v" / "vocab.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "v" / "merges.txt"));
}

}  // namespace
}  // namespace hyperslab::test
