// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/split_syntax.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "support/refusal.hpp"
#include "tokenizer/pattern.hpp"

namespace hyperslab::test {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(const std::string& pattern, const std::string& text) {
  const io::Pattern compiled(pattern, "p");
  io::Splitter splitter(compiled);
  splitter.start(text);
  Pieces pieces;
  for (auto piece = splitter.next(); !piece.empty(); piece = splitter.next()) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

/// Recorded by make_split_golden.py.
TEST(SplitSyntax, PatternsSplitAsThePackageTokenizersDoes) {
  const auto golden = nlohmann::json::parse(std::ifstream(HYPERSLAB_SPLIT_GOLDEN_FILE));
  const auto texts = golden["texts"].get<std::vector<std::string>>();
  std::size_t compared = 0;
  for (const auto& row : golden["patterns"]) {
    const auto pattern = row["pattern"].get<std::string>();
    for (std::size_t i = 0; i < texts.size(); ++i, ++compared) {
      EXPECT_EQ(pieces_of(pattern, texts[i]), row["pieces"][i].get<Pieces>())
          << pattern << " as " << io::pcre2_syntax(pattern, "p") << " of " << texts[i];
    }
  }
  EXPECT_GT(compared, 2500U);
}

TEST(SplitSyntax, LeavesPatternsOfKnownModelsAsTheyAre) {
  for (const char* pattern :
       {R"(\p{N}{1,3}| ?[^\p{L}\p{N}]+[\r\n]*)", R"((?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+)"}) {
    EXPECT_EQ(io::pcre2_syntax(pattern, "p"), pattern);
  }
}

TEST(SplitSyntax, NamesWhatHasNoCounterpart) {
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"[[:punct:]]", "'[:punct:]'"},
      {"[a&&b]", "'&&'"},
      {"[a[bc]]", "'['"},
      {"[]a]", "'[]'"},
      {R"([\W])", R"('\W')"},
      {R"([\w-z])", "'-z'"},
      {R"([a-\d])", R"('-\d')"},
      {R"(\p{Greek})", R"('\p{Greek}')"},
      {R"(\pL)", R"('\pL')"},
      {"(?x:a)", "'(?x:'"},
      {"(?s:.)", "'(?s:'"},
      {"a(?i)b", "'(?i)'"},
      {"(a)\\1", R"('\1')"},
      {R"(\Ga)", R"('\G')"},
      {R"(a\K)", R"('\K')"},
      {R"(\X)", R"('\X')"},
      {R"(\xe9)", R"('\xe9')"},
      {"a{3,1}", "'{3,1}'"},
      {"(?P<n>a)", "'(?P'"},
      {"(*UTF)a", "'(*'"},
      {"(?i:\xC3\xA9)", "'\xC3\xA9'"},
      {"(?i:st)", "'st'"},
      {R"((?i:\p{L}))", R"('\p{L}')"},
      {R"((?i)\w)", R"('\w')"},
      {"(?i:[^a])", "'[^'"},
      {R"(\Q.\E)", R"('\Q')"},
      {R"(\cA)", R"('\c')"},
      {R"(\N)", R"('\N')"},
      {"[ab", "'[ab'"}};
  for (const auto& [pattern, construct] : refused) {
    expect_error(ExitCode::data, {"p: ", "found " + construct + " in", "tokenizer.json"},
                 [&] { (void)io::pcre2_syntax(pattern, "p"); });
  }
}

TEST(SplitSyntax, AMessageShowsTheBeginningOfALongPattern) {
  std::string pattern = "(a)\\1";
  for (int i = 0; i < 100'000; ++i) pattern += "\u00e9";
  try {
    (void)io::pcre2_syntax(pattern, "p");
    ADD_FAILURE() << "expected a refusal";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 500U);
    EXPECT_NE(message.find("\u00e9...'"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace hyperslab::test
