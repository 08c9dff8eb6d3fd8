// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json_lines.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>

#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using Texts = std::vector<std::string>;

std::string line_of(const std::string& text) { return nlohmann::json{{"text", text}}.dump(); }

class JsonLinesFiles : public FilesTest {
 protected:
  /// All texts of a file with these bytes.
  Texts texts(const std::string& bytes, const io::JsonLines& json = {},
              std::size_t most = io::kMostJsonLineBytes) {
    io::JsonLinesReader reader(write("in.jsonl", bytes), json, most);
    Texts all;
    Texts some;
    while (reader.next(some)) all.insert(all.end(), some.begin(), some.end());
    return all;
  }
  void refuse(const std::string& bytes, std::initializer_list<std::string> parts,
              std::size_t most = io::kMostJsonLineBytes) {
    expect_error(ExitCode::data, parts, [&] { (void)texts(bytes, {}, most); });
  }
  std::int64_t tokenize(const Texts& inputs, const std::string& output,
                        const io::JsonLines& json = {}) {
    return io::tokenize_files(*io::open_tokenizer("bytes"), inputs, path(output), {}, true, json);
  }
  std::string text_of(const std::string& name) {
    std::string text;
    for (const std::int32_t id :
         read_all(*io::open_tokens({path(name)}, io::RawIds::uint16, 257, 1))) {
      text += id == 256 ? '|' : static_cast<char>(id);
    }
    return text;
  }
};

TEST(JsonText, IsWhatStandsUnderTheKeyOfTheOutermostObject) {
  EXPECT_EQ(io::json_text(R"({"text": "a\nb\u0000\u00e9\ud83d\ude00"})", "text").text,
            std::string("a\nb\0é😀", 10));
  EXPECT_EQ(io::json_text(R"({"meta": {"text": 1, "x": [{"text": 1}]}, "text": "t"})", "text").text,
            "t");
  EXPECT_EQ(io::json_text(R"( {"text": 3, "body": "b"} )", "body").text, "b");
  EXPECT_EQ(io::json_text(R"({"": "empty key"})", "").text, "empty key");
  EXPECT_EQ(io::json_text(R"({"other": "a", "other": "b", "text": "c"})", "text").text, "c");
}

TEST(JsonText, IsRefusedIfTheLineHasNone) {
  const std::string deep(100, '[');
  const std::array<std::array<std::string, 2>, 17> cases = {{
      {R"({"body": "b"})", "the key 'text' is missing"},
      {R"({"meta": {"text": "inner"}})", "the key 'text' is missing"},
      {R"({"text": 3})", "'text' must be a text, found a number"},
      {R"({"text": null})", "found null"},
      {R"({"text": true})", "found a boolean"},
      {R"({"text": ["a"]})", "found a list"},
      {R"({"text": {"text": "a"}})", "found an object"},
      {R"({"text": "a", "text": "a"})", "the key 'text' stands twice"},
      {R"(["text"])", "expected an object of JSON, found a list"},
      {R"("text")", "found a text"},
      {"{\"text\": \"a\xff\"}", "is no JSON in UTF-8 from byte 12 on"},
      {R"({"text": "\ud800"})", "is no JSON in UTF-8"},
      {R"({"text": "a"} {"text": "b"})", "is no JSON in UTF-8"},
      {R"({"text": "a)", "is no JSON in UTF-8"},
      {R"({"text": "a", "x": 1e999})", "a number that is too large"},
      {R"({"text": "a", "x": NaN})", "is no JSON in UTF-8"},
      {R"({"text": "a", "x": )" + deep, "nested too deep"},
  }};
  for (const auto& [line, problem] : cases) {
    const io::JsonText found = io::json_text(line, "text");
    EXPECT_NE(found.problem.find(problem), std::string::npos) << line << ": " << found.problem;
    EXPECT_EQ(found.text, "");
  }
}

TEST_F(JsonLinesFiles, GiveATextALineInTheirOrder) {
  EXPECT_EQ(texts("{\"text\": \"a\"}\n\n \r\n{\"text\": \"b\"}\r\n{\"text\": \"\"}"),
            (Texts{"a", "b", ""}));
  EXPECT_EQ(texts("\n"), Texts{});
}

TEST_F(JsonLinesFiles, AreReadInPartsOfAnyKind) {
  std::mt19937 random(3);
  Texts expected;
  std::string bytes;
  for (int i = 0; i < 3000; ++i) {  // 18 MB, lines of up to 12 kB
    expected.emplace_back(random() % 12000, static_cast<char>('a' + i % 26));
    bytes += line_of(expected.back()) + (i == 2999 ? "" : "\n");
  }
  EXPECT_EQ(texts(bytes), expected);
  expected = {std::string(9 << 20, 'x'), "y", std::string(20 << 20, 'z')};  // longer than a batch
  EXPECT_EQ(texts(line_of(expected[0]) + "\n" + line_of(expected[1]) + "\n" + line_of(expected[2])),
            expected);
}

TEST_F(JsonLinesFiles, NameTheFirstLineThatHasNoText) {
  std::string bytes;
  for (int i = 1; i <= 200000; ++i) bytes += i == 150000 ? "{}\n" : line_of("some text") + "\n";

  refuse(bytes + "{]\n", {path("in.jsonl") + ":150000: the key 'text' is missing"});
  refuse("{\"text\": \"a\"}\n{\"text\": \"b", {":2: is no JSON", "may be cut"});
  refuse("\n\n3\n", {":3: expected an object"});
}

TEST_F(JsonLinesFiles, MayHaveManyBlankAndTinyLines) {
  Texts expected;
  std::string bytes;
  for (int i = 1; i <= 200000; ++i) {  // one batch of bytes, several of lines
    if (i % 3 == 0) {
      expected.push_back(std::to_string(i));
      bytes += line_of(expected.back());
    }
    bytes += i % 3 == 1 ? " \r\n" : "\n";
  }
  ASSERT_LT(bytes.size(), 8U << 20);
  EXPECT_EQ(texts(bytes), expected);
  EXPECT_EQ(texts(std::string(3 << 20, '\n') + line_of("a")), Texts{"a"});

  refuse(bytes + "{}\n{]\n", {":200001: the key 'text' is missing"});
  refuse(bytes + "\n{", {":200002: is no JSON", "may be cut"});
  for (const int blank : {65534, 65535, 65536}) {  // around a batch of lines
    refuse(std::string(static_cast<std::size_t>(blank), '\n') + "3",
           {fmt::format(":{}: expected an object", blank + 1), "may be cut"});
  }
}

TEST_F(JsonLinesFiles, BoundTheirLines) {
  const std::string longest = line_of(std::string(88, 'a'));
  ASSERT_EQ(longest.size(), 99);
  EXPECT_EQ(texts(longest + "\n" + longest, {}, 99).size(), 2);
  refuse(longest + "\n" + longest, {":1: has more than 98 bytes"}, 98);
  refuse(line_of("b") + "\n" + longest + " ", {":2: has more than 99 bytes"}, 99);
  refuse(longest + " ", {":1: has more than 99 bytes"}, 99);

  const io::JsonLines skipping = {"text", false, true};
  const std::string huge = line_of(std::string(10000, 'c'));
  EXPECT_EQ(texts(line_of("a") + "\n" + huge + "\n" + line_of("b"), skipping, 99),
            (Texts{"a", "b"}));
  EXPECT_EQ(texts(line_of("a") + "\n" + huge, skipping, 99), Texts{"a"});
  EXPECT_EQ(texts(huge + "\n" + huge + "\n" + line_of("b") + "\n", skipping, 99), Texts{"b"});
}

TEST_F(JsonLinesFiles, LeaveBrokenLinesOutIfAsked) {
  const io::JsonLines skipping = {"text", false, true};
  ::testing::internal::CaptureStderr();
  const Texts found = texts("{\"text\": \"a\"}\n{}\n{\"text\": \"b\"}\n{\"text\": 1}", skipping);
  const std::string said = ::testing::internal::GetCapturedStderr();

  EXPECT_EQ(found, (Texts{"a", "b"}));
  EXPECT_NE(said.find("2 of 4 lines are left out; the first: line 2 the key 'text' is missing"),
            std::string::npos)
      << said;
  expect_error(ExitCode::data, {"found none", "2 of 2 lines"},
               [&] { (void)texts("{}\n[]\n", skipping); });
}

TEST_F(JsonLinesFiles, BecomeADocumentALine) {
  const auto text = write("a.txt", "one\n<|endoftext|>\ntwo\n");
  const auto lines = write("b.jsonl", line_of("a\n<|endoftext|>\nb\n\n") + "\n" + line_of("") +
                                          "\n" + line_of(" c") + "\n");
  const auto other = write("c.txt", R"({"body": "d"})");

  EXPECT_EQ(tokenize({text, lines}, "t.bin"), 5 + 5 + 20 + 3);
  EXPECT_EQ(text_of("t.bin"), "one\n|two\n|a\n<|endoftext|>\nb\n\n| c|");
  tokenize({other}, "u.bin", {"body", true, false});
  EXPECT_EQ(text_of("u.bin"), "d|");
  EXPECT_EQ(tokenize({write("d.jsonl", line_of(""))}, "v.bin"), 1);
}

TEST_F(JsonLinesFiles, GiveTheTokensOfTheirTexts) {
  std::mt19937 random(5);
  std::string lines;
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    std::string document;
    for (unsigned n = 1 + random() % 60; n > 0; --n) document += "word \"é\\ \t"[random() % 10];
    for (char& c : document) c = c < 0 ? 'e' : c;
    lines += line_of(document) + "\n";
    text += document + '\x1f';
  }
  const io::DocumentSeparator separator{io::DocumentSeparator::Kind::text, "\x1f"};

  tokenize({write("a.jsonl", lines)}, "a.bin");
  io::tokenize_files(*io::open_tokenizer("bytes"), Texts{write("a.txt", text)}, path("b.bin"),
                     separator);

  EXPECT_EQ(content("a.bin"), content("b.bin"));
}

TEST_F(JsonLinesFiles, TrainTheVocabularyOfTheirTexts) {
  io::VocabularyTraining training;
  training.size = 300;
  training.output = path("lines");
  std::string lines;
  std::string text;
  for (int i = 0; i < 500; ++i) {
    const std::string document = fmt::format("he said \"{}\"\nand went {}", i * i, i);
    lines += line_of(document) + "\n";
    text += document + "<|endoftext|>";
  }
  training.inputs = {write("a.jsonl", lines)};
  io::train_vocabulary(training);
  training.inputs = {write("a.txt", text)};
  training.output = path("text");
  io::train_vocabulary(training);

  EXPECT_EQ(content("lines/tokenizer.json"), content("text/tokenizer.json"));
}

TEST_F(JsonLinesFiles, OtherFormatsAreRefusedByName) {
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst", "a.txt.xz", "a.bz2"}) {
    expect_error(ExitCode::data, {name, "compressed", "zcat"},
                 [&] { tokenize({write(name, "x")}, "t.bin"); });
  }
  expect_error(ExitCode::data, {"a.parquet", "parquet_text.py"},
               [&] { tokenize({write("a.parquet", "x")}, "t.bin"); });
}

}  // namespace
}  // namespace hyperslab::test
