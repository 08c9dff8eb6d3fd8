// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t count) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
}
bool coin(Random& random) { return below(random, 2) == 0; }
/// A number with many digits, between 10^-12 and 1.
double small_number(Random& random) {
  return std::pow(10.0, -std::uniform_real_distribution<double>(0, 12)(random));
}
std::string odd_text(Random& random) {
  static const std::array<std::string, 12> kTexts = {
      "null",        "true",         "010",  "a b",   "it's", "say \"so\"",
      "back\\slash", "# no comment", "a: b", "übung", "[x]",  "*"};
  return kTexts[below(random, kTexts.size())];
}

train::Config random_config(Random& random) {
  auto config = read(kValid);
  config.run.name = odd_text(random);
  config.run.directory = odd_text(random);
  config.run.seed = random();
  config.model.width = 48 * (1 + static_cast<Dim>(below(random, 9)));
  config.model.ffn_width = 1 + static_cast<Dim>(below(random, 999));
  config.model.kv_heads = coin(random) ? 1 : 2;
  config.model.norm = static_cast<ops::NormKind>(below(random, 2));
  config.model.norm_place = static_cast<model::NormPlace>(below(random, 2));
  config.model.position = static_cast<model::Position>(below(random, 4));
  config.model.activation = static_cast<ops::Activation>(below(random, 7));
  config.model.attention = static_cast<model::AttentionPath>(below(random, 3));
  config.model.bias = coin(random);
  config.model.dropout = small_number(random) / 2;
  config.model.rope.theta = 1 / small_number(random);
  config.model.embedding_scale = 1 / (1e-6 + small_number(random));
  config.model.bos_token = coin(random) ? -1 : static_cast<std::int64_t>(below(random, 300));
  config.model.eos_tokens.assign(below(random, 3), 7);
  config.data.train = {odd_text(random), odd_text(random), odd_text(random)};
  config.data.vocabulary = coin(random) ? "" : odd_text(random);
  config.optimizer.lr = small_number(random);
  config.optimizer.betas = {small_number(random) / 2, 1 - small_number(random) / 2};
  config.optimizer.weight_decay = coin(random) ? 0 : 1e300 * small_number(random);
  config.checkpoint.directory = coin(random) ? "" : odd_text(random);
  config.checkpoint.initial = coin(random) ? "" : odd_text(random);
  config.checkpoint.keep = coin(random) ? 0 : 2;
  config.checkpoint.resume = coin(random) ? io::ResumeChoice{io::ResumeFrom::nothing, 0}
                                          : io::ResumeChoice{io::ResumeFrom::step, 120};
  config.timing.trace_steps.assign(below(random, 4), 12345678901);
  return config;
}

TEST(ToYaml, ReadsBackEqual) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    const auto config = random_config(random);
    const auto yaml = to_yaml(config);

    ASSERT_EQ(refusal(yaml), "accepted") << yaml;
    ASSERT_EQ(read(yaml), config) << yaml;
  }
}

TEST(ToYaml, HasEveryKeyAndIsStable) {
  const auto yaml = to_yaml(read(kValid));

  EXPECT_EQ(to_yaml(read(yaml)), yaml);
  std::size_t lines = 0;
  for (const auto& section : sections()) lines += 1 + section.keys.size();
  EXPECT_EQ(std::ranges::count(yaml, '\n'), static_cast<std::ptrdiff_t>(lines));
}

/// Changes a few bytes: deletes, doubles, replaces and moves pieces, with what YAML finds special.
std::string mutated(std::string text, Random& random) {
  static const std::string kSpecial = ":{}[],&*#?|-<>=!%@`'\"\\ \n\t\r~0x1e_.\xC3\xFF";
  const auto changes = 1 + below(random, 8);
  for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
    const auto at = below(random, text.size());
    const auto length = 1 + below(random, 12);
    switch (below(random, 5)) {
      case 0: text.erase(at, length); break;
      case 1: text.insert(at, text.substr(below(random, text.size()), length)); break;
      case 2: text[at] = kSpecial[below(random, kSpecial.size())]; break;
      case 3: text.insert(at, 1, kSpecial[below(random, kSpecial.size())]); break;
      default: text.insert(at, length, kSpecial[below(random, kSpecial.size())]); break;
    }
  }
  return text;
}

/// Either a Config or an Error(usage), whose lines all say where.
void expect_config_or_report(const std::string& text, const std::vector<std::string>& overrides) {
  const auto report = refusal(text, overrides);
  ASSERT_NE(report, "wrong exit code") << text;
  if (report == "accepted") return;
  for (std::size_t start = 0; start < report.size();) {
    const auto end = std::min(report.find('\n', start), report.size());
    const auto line = report.substr(start, end - start);
    ASSERT_TRUE(line.starts_with("deck.yaml:") || line.starts_with("--set ") ||
                line.starts_with("... and "))
        << line;
    start = end + 1;
  }
}

TEST(Fuzz, MutatedDecksGiveAConfigOrAReport) {
  Random random(2);
  const auto full = to_yaml(read(kValid));
  for (int i = 0; i < 3000; ++i) {
    expect_config_or_report(mutated(coin(random) ? kValid : full, random), {});
    if (HasFatalFailure()) return;
  }
}

TEST(Fuzz, MutatedOverridesGiveAConfigOrAReport) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    auto override_text = mutated("optimizer.betas=[0.9, 0.95]", random);
    std::erase(override_text, '\n');
    expect_config_or_report(kValid, {override_text});
    if (HasFatalFailure()) return;
  }
}

TEST(Fuzz, DeepNestingIsRefused) {
  EXPECT_NE(refusal("a: " + std::string(100'000, '[')), "accepted");
  EXPECT_NE(refusal("a: " + std::string(100'000, '{')), "accepted");
}

}  // namespace
}  // namespace hyperslab::deck::test
