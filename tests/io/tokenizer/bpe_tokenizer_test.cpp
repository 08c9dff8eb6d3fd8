// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <omp.h>

#include <limits>
#include <map>
#include <thread>

#include "io/tokenizer/vocabularies.hpp"
#include "tokenizer/bpe_vocabulary.hpp"
#include "tokenizer/cuts.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/vocabulary_parts.hpp"

namespace hyperslab::test {
namespace {

const std::string kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

class BpeTokenizer : public VocabularyTest {
 protected:
  BpeTokenizer() {
    std::mt19937 random(1);
    train(random_bytes(random, 40000) + std::string(5000, 'a'), 600);
  }
};

using Pieces = std::vector<std::string>;

Pieces pieces_of(const io::Pattern& pattern, const std::string& text) {
  io::Splitter splitter(pattern);
  Pieces pieces;
  splitter.start(text);
  for (auto piece = splitter.next(); !piece.empty(); piece = splitter.next()) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

/// The definition: while two neighbours have a merge, the one of lowest rank, the leftmost first.
std::vector<std::int32_t> plain_ids(const io::BpeVocabulary& vocabulary, const std::string& piece) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) {
    ranks[{vocabulary.merges[i].left, vocabulary.merges[i].right}] = i;
  }
  std::vector<std::int32_t> ids;
  for (const char c : piece) ids.push_back(vocabulary.byte_ids[static_cast<unsigned char>(c)]);
  while (true) {
    std::size_t best = std::numeric_limits<std::size_t>::max();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == std::numeric_limits<std::size_t>::max()) return ids;
    ids[at] = vocabulary.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST_F(BpeTokenizer, AnyBytesComeBack) {
  const auto gpt2 = io::open_tokenizer(path("vocab"));
  const auto llama3 = io::open_tokenizer(with_pattern("vocab", kLlama3));
  std::mt19937 random(2);
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);

  for (const auto* tokenizer : {gpt2.get(), llama3.get()}) {
    EXPECT_EQ(decoded(*tokenizer, tokenizer->encode(every)), every);
    for (std::size_t size = 0; size < 300; ++size) {
      const std::string text = random_bytes(random, size);
      EXPECT_EQ(decoded(*tokenizer, tokenizer->encode(text)), text);
    }
  }
}

TEST_F(BpeTokenizer, GivesNothingForOtherIds) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));

  for (const std::int32_t id : {-1, 600, 1 << 30}) EXPECT_EQ(tokenizer->decode(id), "");
  EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST_F(BpeTokenizer, PiecesOfEveryLengthMergeAsDefined) {
  const auto vocabulary = std::get<io::BpeVocabulary>(io::read_vocabulary(path("vocab")));
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  std::mt19937 random(3);

  for (std::size_t size = 1; size < 260; ++size) {
    std::string mixed;
    while (mixed.size() < size) mixed += random() % 4 == 0 ? 'b' : 'a';
    for (const std::string& piece : {std::string(size, 'a'), mixed, mixed}) {  // again: cached
      EXPECT_EQ(tokenizer->encode(piece), plain_ids(vocabulary, piece)) << piece;
    }
  }
}

TEST_F(BpeTokenizer, LongRunsTakeNoQuadraticTime) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));

  for (const char* unit : {"a", " ", "\n", "!", "ab", "\xC3\xA9", "\xFF"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    EXPECT_EQ(decoded(*tokenizer, tokenizer->encode(text)), text);
  }
}

TEST_F(BpeTokenizer, SpecialTokensInTextAreText) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));

  const auto ids = tokenizer->encode("<|endoftext|>");

  EXPECT_EQ(std::ranges::count(ids, tokenizer->end_of_text()), 0);
  EXPECT_EQ(decoded(*tokenizer, ids), "<|endoftext|>");
}

TEST(Pattern, LettersAndDigitsAreThoseOfUnicode16WhateverTheEngineHas) {
  const io::Pattern pattern{std::string(io::kGpt2Pattern), "test"};
  const std::string han = "\xF0\xB1\x8D\x90";    // U+31350, Lo since Unicode 15
  const std::string digit = "\xF0\x90\xB5\x80";  // U+10D40, Nd since Unicode 16
  const std::string letter = "\xEA\x9F\x8B";     // U+A7CB, Lu since Unicode 16
  const std::string emoji = "\xF0\x9F\xAB\xA8";  // U+1FAE8, So since Unicode 15
  const std::string none = "\xF0\xB8\x80\x80";   // U+38000, not assigned
  const std::string later = "\xF0\xB2\x8E\xB0";  // U+323B0, Lo since Unicode 17

  EXPECT_EQ(io::unicode_version(), "16.0");
  EXPECT_EQ(pieces_of(pattern, han + "'ll"), (Pieces{han, "'ll"}));
  EXPECT_EQ(pieces_of(pattern, "a" + han + letter + " b"), (Pieces{"a" + han + letter, " b"}));
  EXPECT_EQ(pieces_of(pattern, "1" + digit + "a"), (Pieces{"1" + digit, "a"}));
  EXPECT_EQ(pieces_of(pattern, "a" + emoji + "!" + none + later + "'ll"),
            (Pieces{"a", emoji + "!" + none + later + "'", "ll"}));
  EXPECT_EQ(pieces_of(io::Pattern(R"(\p{Han}+|\p{Lu}+|[\p{So}\p{Cn}]+)", "test"),
                      han + letter + emoji + none),
            (Pieces{han, letter, emoji + none}));
  const std::string broken = han.substr(0, 3);  // stand-ins are for whole characters alone
  EXPECT_EQ(pieces_of(pattern, han + broken + han), (Pieces{han, "\xF0", "\xB1", "\x8D", han}));
}

TEST_F(BpeTokenizer, AddedTokensThatAreNotSpecialAreFoundInText) {
  auto file = json_of("vocab/tokenizer.json");
  for (const auto& [id, content] : {std::pair(600, "qq zz"), std::pair(601, "qq")}) {
    file["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", false}});
  }
  const auto tokenizer = io::open_tokenizer(write("added.json", file.dump()));

  const auto ids = tokenizer->encode("qqqq zz \nqq");

  EXPECT_EQ(tokenizer->vocabulary(), 602);
  ASSERT_GE(ids.size(), 4U);
  EXPECT_EQ(ids.front(), 601);
  EXPECT_EQ(ids[1], 600);
  EXPECT_EQ(ids.back(), 601);
  EXPECT_EQ(decoded(*tokenizer, ids), "qqqq zz \nqq");
}

/// 4 MiB in which every cut is refused take a moment; minutes where each refusal starts a search.
/// As the package tokenizers 0.23 has it with encode_special_tokens.
class AddedTokens : public VocabularyTest {
 protected:
  AddedTokens() {
    train("a b", 257, "v");
    file_ = json_of("v/tokenizer.json");
  }
  void add(const std::string& content, bool normalized, bool special = false) {
    const std::size_t id = 256 + file_["added_tokens"].size();
    file_["added_tokens"].push_back({{"id", id},
                                     {"content", content},
                                     {"normalized", normalized},
                                     {"special", special},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false}});
  }
  [[nodiscard]] std::vector<std::int32_t> ids(const std::string& text) {
    return io::open_tokenizer(write("t.json", file_.dump()))->encode(text);
  }
  nlohmann::json file_;
};

TEST_F(AddedTokens, ThatAreNormalizedAreFoundInNormalizedText) {
  const std::string composed = "caf\u00e9";
  const std::string decomposed = "cafe\u0301";
  for (const std::string& content : {composed, decomposed}) {
    file_ = json_of("v/tokenizer.json");
    file_["normalizer"] = {{"type", "NFC"}};
    add(content, true);
    for (const std::string& text : {composed, decomposed}) {
      EXPECT_THAT(ids("a " + text + " b"), testing::ElementsAre(64, 220, 257, 220, 65));
    }
  }
}

TEST_F(AddedTokens, ThatAreNotAreFoundInTextAsItIs) {
  file_["normalizer"] = {{"type", "NFC"}};
  add("e\u0301", false);
  EXPECT_THAT(ids("ae\u0301"), testing::ElementsAre(64, 257));
  EXPECT_THAT(ids("a\u00e9"), testing::ElementsAre(64, 127, 102));
}

TEST_F(AddedTokens, ThatAreNotNormalizedComeFirst) {
  add("ab c", true);
  add("c d", false);
  EXPECT_THAT(ids("ab c d"), testing::ElementsAre(64, 65, 220, 258));
}

TEST_F(AddedTokens, InsideASpecialOneThatStaysTextAreFound) {
  add("<|user|>", false, true);
  add("user", true);
  EXPECT_THAT(ids("<|user|>"), testing::ElementsAre(27, 91, 258, 91, 29));
}

TEST_F(AddedTokens, ThatAreNormalizedAreNotCut) {
  file_["normalizer"] = {{"type", "NFC"}};
  add("\u00e9 x", true);
  const auto tokenizer = io::open_tokenizer(write("t.json", file_.dump()));
  const std::string text = "abe\u0301 x";
  const std::size_t cut = tokenizer->last_cut(text, 2);
  EXPECT_EQ(cut, std::string::npos) << cut;
  EXPECT_THAT(tokenizer->encode(text), testing::ElementsAre(64, 65, 257));
}

TEST_F(AddedTokens, NfcIsThatOfThePackage) {
  file_["normalizer"] = {{"type", "NFC"}};
  const auto bytes = [](const std::string& text) {
    return io::open_tokenizer("bytes")->encode(text).size();
  };
  for (const std::string text :
       {"\U00011935\U00011930", "q\u1df6\u0334", "\U000105d2\u0307", "\U0001611e\U0001611e"}) {
    const auto found = ids(text);
    EXPECT_EQ(decoded(*io::open_tokenizer(path("t.json")), found), text);
    EXPECT_EQ(found.size(), bytes(text));
  }
  EXPECT_EQ(ids("q\u0315\u0334"), ids("q\u0334\u0315"));
  EXPECT_EQ(ids("\U000110a5\U000110ba"), ids("\U000110ab"));
}

TEST_F(BpeTokenizer, AddedTokensThatRefuseCutsTakeNoQuadraticTime) {
  auto file = json_of("vocab/tokenizer.json");
  file["added_tokens"].push_back({{"id", 600}, {"content", "x y"}, {"special", false}});
  const auto inside = io::open_tokenizer(write("inside.json", file.dump()));
  file["added_tokens"].back() = {
      {"id", 600}, {"content", "<t>"}, {"special", true}, {"rstrip", true}};
  const auto after =
      io::open_tokenizer(write("after.json", file.dump()), io::SpecialTokens::parsed);
  std::string words;
  std::string marks;
  for (int i = 0; i < (1 << 20); ++i) {
    words += i % 1000 == 999 ? "x\n" : "x x ";
    marks += "<b> ";
  }
  words += "x y";

  EXPECT_EQ(inside->last_cut(words.substr(0, 1995), 2), std::string::npos);
  EXPECT_EQ(words[inside->last_cut(words, 2) - 1], '\n');
  EXPECT_EQ(after->last_cut(marks, 2), std::string::npos);
  EXPECT_EQ(after->last_cut(marks + "b\nb", 2), marks.size() + 2);
}

TEST_F(BpeTokenizer, WholePiecesAreTokensIfTheFileSaysSo) {
  auto file = json_of("vocab/tokenizer.json");
  file["model"]["vocab"]["zebra"] = 600;
  file["model"]["ignore_merges"] = false;
  const auto merging = io::open_tokenizer(write("merging.json", file.dump()));
  file["model"]["ignore_merges"] = true;
  const auto whole = io::open_tokenizer(write("whole.json", file.dump()));

  EXPECT_GT(merging->encode("zebra").size(), 1U);
  EXPECT_EQ(whole->encode("zebra"), std::vector<std::int32_t>{600});
}

TEST_F(BpeTokenizer, ThreadsMayEncodeAtTheSameTime) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  std::mt19937 random(4);
  const std::string text = random_bytes(random, 50000);
  const auto expected = tokenizer->encode(text);
  std::vector<std::vector<std::int32_t>> found(4);

  {
    std::vector<std::jthread> threads;
    threads.reserve(found.size());
    for (auto& ids : found) threads.emplace_back([&] { ids = tokenizer->encode(text); });
  }

  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

TEST_F(BpeTokenizer, FilesGiveTheIdsOfTheirTextWhateverTheThreads) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  std::mt19937 random(5);
  std::string text;
  while (text.size() < (9 << 20)) text += random_bytes(random, 500) + "x\nab the end";
  const auto one = write("one.txt", text);
  const auto two = write("two.txt", "short\n<|endoftext|>\nand shorter");
  auto expected = tokenizer->encode(text);
  for (const char* part : {"", "short\n", "and shorter"}) {
    for (const std::int32_t id : tokenizer->encode(part)) expected.push_back(id);
    expected.push_back(tokenizer->end_of_text());
  }

  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    io::tokenize_files(*tokenizer, std::vector{one, two}, path("ids.bin"));
    EXPECT_TRUE(read_all(*io::open_tokens({path("ids.bin")}, io::RawIds::uint16, 600, 1)) ==
                expected);
  }
  omp_set_num_threads(before);
}

TEST_F(BpeTokenizer, AnyBytesOfAFileComeBack) {
  const auto tokenizer = io::open_tokenizer(path("vocab"));
  std::mt19937 random(7);
  std::string mixed;
  while (mixed.size() < (1 << 20)) mixed += random_bytes(random, 500);
  const std::vector<std::string> texts = {
      mixed,
      std::string(9 << 20, 'x'),
      std::string(9 << 20, ' '),
      std::string(9 << 20, '\n'),
      std::string(3 << 20, '\0') + "\xFF\xFE\xC0\xAF\xED\xA0\x80",
      "e\xCC\x81\xCC\x88\xE2\x80\x8D \xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D \xF0\x9F\x91\xA8"};
  for (const std::string& text : texts) {
    io::tokenize_files(*tokenizer, std::vector{write("in.txt", text)}, path("ids.npy"));
    io::decode_files(*tokenizer, {path("ids.npy")}, path("back.txt"));
    EXPECT_TRUE(content("back.txt") == text) << text.substr(0, 20);
  }
}

TEST_F(BpeTokenizer, CutsChangeNoIds) {
  const auto gpt2 = io::open_tokenizer(path("vocab"));
  const auto llama3 = io::open_tokenizer(with_pattern("vocab", kLlama3));
  std::mt19937 random(6);
  std::size_t parts = 0;

  for (int i = 0; i < 200; ++i) {
    const std::string text = random_bytes(random, 500);
    for (const auto* tokenizer : {gpt2.get(), llama3.get()}) {
      std::vector<std::int32_t> joined;
      for (const auto part : io::cut_into_parts(text, 30)) {
        for (const std::int32_t id : tokenizer->encode(part)) joined.push_back(id);
        ++parts;
      }
      EXPECT_EQ(joined, tokenizer->encode(text)) << text;
    }
  }
  EXPECT_GT(parts, 1000U);
}

TEST(Cuts, NoneBeforeACharacterThatIsNotWhole) {
  EXPECT_EQ(io::last_cut("a\n\xE3", 2), std::string_view::npos);  // may become U+3000, a space
  EXPECT_EQ(io::last_cut("a\n\xE3\x80", 2), std::string_view::npos);
  EXPECT_EQ(io::last_cut("a\n\xE3\x81", 2), 2U);  // may become hiragana
}

TEST_F(BpeTokenizer, CutsBetweenWordsOfAnyKindChangeNoIds) {
  const auto gpt2 = io::open_tokenizer(path("vocab"));
  const auto llama3 = io::open_tokenizer(with_pattern("vocab", kLlama3));
  std::mt19937 random(8);
  constexpr std::string_view kCharacters = "a1'.(s ";
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int j = 0; j < 300; ++j) text += kCharacters[random() % kCharacters.size()];
    const auto parts = io::cut_into_parts(text, 30);
    EXPECT_GT(parts.size(), 3U);
    for (const auto* tokenizer : {gpt2.get(), llama3.get()}) {
      std::vector<std::int32_t> joined;
      for (const auto part : parts) {
        for (const std::int32_t id : tokenizer->encode(part)) joined.push_back(id);
      }
      EXPECT_EQ(joined, tokenizer->encode(text)) << text;
    }
  }
}

TEST(Splitter, GivesGpt2sPieces) {
  const io::Pattern pattern(std::string(io::kGpt2Pattern), "test");

  EXPECT_EQ(pieces_of(pattern, "Don't  stop!\n\nIt's 42"),
            (Pieces{"Don", "'t", " ", " stop", "!", "\n", "\n", "It", "'s", " 42"}));
  EXPECT_EQ(pieces_of(pattern, "a\xC2\xA0 b\xE3\x80\x80"),
            (Pieces{"a", "\xC2\xA0", " b", "\xE3\x80\x80"}));
  EXPECT_EQ(pieces_of(pattern, "a\xFF\xC3z"), (Pieces{"a", "\xFF", "\xC3", "z"}));
}

TEST(Splitter, AsciiPiecesAreThoseOfTheEngine) {
  const io::Pattern fast(std::string(io::kGpt2Pattern), "test");
  const io::Pattern engine("(?:" + std::string(io::kGpt2Pattern) + ")", "test");
  ASSERT_TRUE(fast.is_gpt2());
  ASSERT_FALSE(engine.is_gpt2());
  std::mt19937 random(7);

  for (int i = 0; i < 3000; ++i) {
    std::string text = random_bytes(random, 40);
    for (char& c : text) {
      if (random() % 8 == 0) c = static_cast<char>(random() % 128);
      if (random() % 8 == 0) c = "'strevmld \n"[random() % 11];
    }
    EXPECT_EQ(pieces_of(fast, text), pieces_of(engine, text)) << text;
  }
}

TEST(Splitter, TextBetweenMatchesIsAPiece) {
  const io::Pattern pattern("[0-9]+|x+", "test");

  EXPECT_EQ(pieces_of(pattern, "ab12cxxd"), (Pieces{"ab", "12", "c", "xx", "d"}));
}

/// As in tokenizers.
TEST(Splitter, EmptyMatchesPartTheTextBetweenMatches) {
  const io::Pattern pattern("[0-9]+|x*", "test");

  EXPECT_EQ(pieces_of(pattern, "ab12cxxd"), (Pieces{"a", "b", "12", "c", "xx", "d"}));
}

TEST(Splitter, RefusesBrokenPatterns) {
  expect_error(ExitCode::data,
               {"vocabulary 'v': expected a regular expression", "'(a'", "parenthes"},
               [] { const io::Pattern pattern("(a", "vocabulary 'v'"); });
}

}  // namespace
}  // namespace hyperslab::test
