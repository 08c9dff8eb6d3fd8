// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/tokenizer.hpp"

#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using io::Utf8Stream;
const std::string kBad = "\xEF\xBF\xBD";

TEST(ByteTokenizer, EncodesAndDecodesEveryByte) {
  const auto tokenizer = io::open_tokenizer("bytes");
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);

  const auto ids = tokenizer->encode(text);
  std::string back;
  for (const std::int32_t id : ids) back += tokenizer->decode(id);

  ASSERT_EQ(ids.size(), 256U);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(back, text);
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
}

TEST(ByteTokenizer, GivesNothingForOtherIds) {
  const auto tokenizer = io::open_tokenizer("bytes");

  for (const std::int32_t id : {-1, 256, 257, 1 << 30}) EXPECT_EQ(tokenizer->decode(id), "");
  EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(OpenTokenizer, RefusesOtherNames) {
  expect_error(ExitCode::data, {"'words'", "bytes"}, [] { (void)io::open_tokenizer("words"); });
}

using ByteTokenizerFile = FilesTest;

TEST_F(ByteTokenizerFile, GoesAlongAsAVocabularyWithoutMerges) {
  const auto tokenizer = io::open_tokenizer(write("tokenizer.json", io::byte_tokenizer_json()));
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);

  EXPECT_EQ(tokenizer->encode(text), io::open_tokenizer("bytes")->encode(text));
  EXPECT_EQ(tokenizer->vocabulary(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
}

TEST_F(ByteTokenizerFile, OfTextInFormCComposesWhatItReads) {
  const std::string plain = io::byte_tokenizer_json();
  const std::string null = R"("normalizer":null)";
  std::string composing = plain;
  composing.replace(plain.find(null), null.size(), R"("normalizer":{"type":"NFC"})");
  const auto tokenizer = io::open_tokenizer(write("tokenizer.json", composing));
  const auto read = [&](const std::string& text) {
    std::string back;
    for (const std::int32_t id : tokenizer->encode(text)) back += tokenizer->decode(id);
    return back;
  };

  EXPECT_EQ(read("plain, caf\u00e9, \u4e2d\u6587"), "plain, caf\u00e9, \u4e2d\u6587");
  EXPECT_EQ(read("cafe\u0301"), "caf\u00e9");
  EXPECT_EQ(read("q\u0307\u0323"), "q\u0323\u0307");                   // marks in their order
  EXPECT_EQ(read("\u1112\u1161\u11ab"), "\ud55c");                     // Hangul
  EXPECT_EQ(read("\u212b\u2126"), "\u00c5\u03a9");                     // Angstrom and Ohm
  EXPECT_EQ(read("\ufb01\u00b2"), "\ufb01\u00b2");                     // only compatible: they stay
  EXPECT_EQ(read("\u0958"), "\u0915\u093c");                           // excluded from composition
  EXPECT_EQ(read("e\xff\u0301e\u0301\xcc"), "e\xff\u0301\u00e9\xcc");  // no UTF-8 between
  EXPECT_EQ(io::open_tokenizer(write("plain.json", plain))->encode("e\u0301").size(), 3U);
}

TEST(OpenTokenizer, MayHaveFewerTokensThanTheModelButNotMore) {
  const auto tokenizer = io::open_tokenizer("bytes");

  for (const std::int64_t rows : {257, 320}) io::require_fits_model(*tokenizer, "bytes", rows);
  expect_error(
      ExitCode::data,
      {"vocabulary 'some/bytes': expected at most 256 tokens (model.vocabulary), found 257"},
      [&] { io::require_fits_model(*tokenizer, "some/bytes", 256); });
}

TEST(Utf8Stream, GivesTheSameTextHoweverItIsSplit) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";  // 1 to 4 bytes each

  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      Utf8Stream stream;
      const std::string first = stream.push(text.substr(0, i));
      std::string out = first;
      for (const auto& part : {text.substr(i, j - i), text.substr(j)}) out += stream.push(part);
      out += stream.finish();
      EXPECT_EQ(out, text);
      EXPECT_TRUE(first.empty() || (text[first.size()] & 0xC0) != 0x80) << "cut in a character";
    }
  }
}

TEST(Utf8Stream, EmitsACharacterWithItsLastByte) {
  Utf8Stream stream;

  EXPECT_EQ(stream.push("\xF0"), "");
  EXPECT_EQ(stream.push("\x9F\x98"), "");
  EXPECT_EQ(stream.push("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatIsNotUtf8) {
  const auto all = [](const std::string& bytes) {
    Utf8Stream stream;
    std::string whole = stream.push(bytes);
    whole += stream.finish();
    std::string single;
    for (const char byte : bytes) single += stream.push({&byte, 1});
    EXPECT_EQ(single + stream.finish(), whole);
    return whole;
  };

  EXPECT_EQ(all("\x80"
                "a"),
            kBad + "a");
  EXPECT_EQ(all("\xFF\xFE"), kBad + kBad);
  EXPECT_EQ(all("\xC0\xAF"), kBad + kBad);                        // overlong
  EXPECT_EQ(all("\xED\xA0\x80"), kBad + kBad + kBad);             // surrogate
  EXPECT_EQ(all("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // above U+10FFFF
  EXPECT_EQ(all("\xE2\x82"
                "a"),
            kBad + "a");  // one for the part begun
  EXPECT_EQ(all("\xE2\x82\xC3\xA9"), kBad + "\xC3\xA9");
  EXPECT_EQ(all("ab\xF0\x9F\x98"), "ab" + kBad);
}

TEST(StopSearch, GivesWhatStandsBeforeTheFirstStopHoweverItIsSplit) {
  const std::string text = "one end two <end> three";

  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      io::StopSearch search({"<end>", "nd t", "three"});
      std::string out = search.push(text.substr(0, i));
      out += search.push(text.substr(i, j - i));
      out += search.push(text.substr(j));
      EXPECT_TRUE(search.found());
      EXPECT_EQ(out + search.finish(), "one e");
    }
  }
}

TEST(StopSearch, HoldsBackOnlyWhatMayBecomeAStop) {
  io::StopSearch search({"abac"});

  EXPECT_EQ(search.push("xab"), "x");
  EXPECT_EQ(search.push("a"), "");
  EXPECT_EQ(search.push("b"), "ab");  // "abab" ends like a beginning of the stop
  EXPECT_EQ(search.push("z"), "abz");
  EXPECT_EQ(search.push("aba"), "");
  EXPECT_FALSE(search.found());
  EXPECT_EQ(search.finish(), "aba");
}

TEST(StopSearch, PassesEverythingWithoutStops) {
  io::StopSearch search({});

  EXPECT_EQ(search.push("any"), "any");
  EXPECT_EQ(search.finish(), "");
}

TEST(DocumentSeparator, ReadsEscapesAndTheBlankLineRule) {
  using io::parse_document_separator;
  using Kind = io::DocumentSeparator::Kind;

  EXPECT_EQ(parse_document_separator("blank-lines").kind, Kind::blank_lines);
  EXPECT_EQ(parse_document_separator("<s>").kind, Kind::text);
  EXPECT_EQ(parse_document_separator(R"(a\n\r\t\\x\x00\xfF.)").text,
            std::string("a\n\r\t\\x\0\xff.", 9));
  for (const char* wrong : {"", "\\", "\\q", "\\x1", "\\xg0"}) {
    expect_error(ExitCode::usage, {"--document-separator", "blank-lines"},
                 [&] { (void)parse_document_separator(wrong); });
  }
  expect_error(ExitCode::usage, {"5000 bytes"},
               [] { (void)io::parse_document_separator(std::string(5000, 'x')); });
}

}  // namespace
}  // namespace hyperslab::test
