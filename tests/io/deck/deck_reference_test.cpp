// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "decks.hpp"
#include "key_sentences.hpp"

namespace hyperslab::deck::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

const KeyInfo& info_of(const std::string& key) {
  for (const auto& section : sections()) {
    for (const auto& one : section.keys) {
      if (one.key == key) return one;
    }
  }
  throw Error(ExitCode::internal, "no key " + key);
}

std::string message_of(std::string (*text)(std::string_view), const std::string& section) {
  try {
    return text(section);
  } catch (const Error& error) {
    return error.code() == ExitCode::usage ? error.what() : "wrong exit code";
  }
}

TEST(Reference, EverySectionAndKeyHasOneSentence) {
  std::set<std::string_view> known;
  for (const auto& section : sections()) {
    known.insert(section.name);
    EXPECT_THAT(std::string(section.sentence), EndsWith(".")) << section.name;
    for (const auto& key : section.keys) {
      known.insert(key.key);
      EXPECT_THAT(std::string(key.sentence), EndsWith(".")) << key.key;
      EXPECT_GT(key.sentence.size(), 10U) << key.key;
    }
  }

  std::set<std::string_view> described;
  for (const auto& [key, sentence] : key_sentences()) {
    EXPECT_TRUE(described.insert(key).second) << key << " is described twice";
    EXPECT_TRUE(known.contains(key)) << key << " is described and no key";
  }
  EXPECT_EQ(described.size(), known.size());
}

TEST(Reference, DefaultsAreThoseOfTheFamilies) {
  const auto gpt2 = model::preset(model::Family::gpt2);
  const auto llama = model::preset(model::Family::llama);
  std::set<std::string> differing;
  for (const auto& section : sections()) {
    for (const auto& key : section.keys) {
      if (key.gpt2_default != key.llama_default) differing.insert(key.key);
    }
  }

  EXPECT_EQ(differing, (std::set<std::string>{"model.position", "model.norm", "model.activation",
                                              "model.bias", "model.tie_embeddings"}));
  EXPECT_EQ(info_of("model.norm").gpt2_default, "layernorm");
  EXPECT_EQ(info_of("model.norm").llama_default, "rmsnorm");
  EXPECT_EQ(info_of("model.bias").gpt2_default, gpt2.bias ? "true" : "false");
  EXPECT_EQ(info_of("model.bias").llama_default, llama.bias ? "true" : "false");
  EXPECT_EQ(info_of("model.width").gpt2_default, "");
  EXPECT_EQ(info_of("optimizer.lr").gpt2_default, "0.0003");
}

TEST(Reference, DefaultsReadBackAsThemselves) {
  for (const std::string family : {"gpt2", "llama"}) {
    std::vector<std::string> overrides = {"model.family=" + family};
    for (const auto& section : sections()) {
      for (const auto& key : section.keys) {
        const auto& value = family == "gpt2" ? key.gpt2_default : key.llama_default;
        const bool given = value.empty() || key.key == "model.family" || key.key == "data.train" ||
                           key.key == "train.steps" || key.key == "run.name";
        if (!given) overrides.push_back(key.key + "=" + value);
      }
    }

    EXPECT_EQ(read(kValid, overrides), read(kValid, {"model.family=" + family}));
  }
}

TEST(Reference, ChoicesAreWordsThatTheKeyTakes) {
  EXPECT_EQ(info_of("model.norm").choices,
            (std::vector<std::string_view>{"layernorm", "rmsnorm", "none"}));
  EXPECT_EQ(info_of("model.bias").choices, (std::vector<std::string_view>{"true", "false"}));
  EXPECT_EQ(info_of("optimizer.lr").choices, std::vector<std::string_view>{});
}

TEST(Reference, KeysAsText) {
  EXPECT_EQ(keys_text("optimizer.lr"),
            "optimizer.lr\n    number, more than 0; default 0.0003\n"
            "    Learning rate at its highest.\n");
  const auto model = keys_text("model");
  EXPECT_THAT(model,
              HasSubstr("model.norm\n    layernorm, rmsnorm or none; default layernorm, with "
                        "family llama rmsnorm\n    Kind of normalization.\n"));
  EXPECT_THAT(model, HasSubstr("model.layers\n    whole number, between 1 and 4096; required\n"));
  EXPECT_THAT(model, Not(HasSubstr("optimizer.lr")));
  const auto all = keys_text("");
  for (const auto& section : sections()) {
    EXPECT_THAT(all, HasSubstr(keys_text(section.name)));
  }
  for (std::size_t start = 0; start < all.size();) {
    const auto end = all.find('\n', start);
    EXPECT_LE(end - start, 98U) << all.substr(start, end - start);
    start = end + 1;
  }
}

TEST(Reference, KeysAsMarkdown) {
  const auto model = keys_markdown("model");

  EXPECT_THAT(model, HasSubstr("### `model`\n\n"));
  EXPECT_THAT(model, HasSubstr("| `model.layers` | whole number, between 1 and 4096 | required | "
                               "Number of transformer blocks. |\n"));
  EXPECT_THAT(model,
              HasSubstr("| `model.norm` | `layernorm`, `rmsnorm` or `none` | `layernorm`, with "
                        "family llama `rmsnorm` | Kind of normalization. |\n"));
  EXPECT_THAT(keys_markdown(""), HasSubstr(model));
}

TEST(Reference, RulesAsText) {
  EXPECT_THAT(rules_text("model"), HasSubstr("model.kv_heads\n    divides model.heads\n"));
  EXPECT_THAT(rules_text("model"), Not(HasSubstr("parallel.tensor\n")));
  EXPECT_THAT(rules_text(""), HasSubstr(rules_text("parallel")));
}

TEST(Reference, UnknownSectionsSayWhatMayBeMeant) {
  EXPECT_EQ(message_of(keys_text, "modle"), "there is no section 'modle' (did you mean 'model'?)");
  EXPECT_EQ(message_of(keys_markdown, "check"),
            "there is no section 'check' (did you mean 'checkpoint'?)");
  EXPECT_EQ(message_of(rules_text, "zzz"),
            "there is no section 'zzz' (known are run, model, experts, data, augment, parallel, "
            "precision, "
            "memory, "
            "optimizer, schedule, train, adapter, quantization, checkpoint, timing or spikes)");
  EXPECT_EQ(message_of(keys_text, "model.head"),
            "there is no key 'model.head'; did you mean 'model.heads'?");
}

TEST(MeantKey, BeginningsComeBeforeEdits) {
  EXPECT_EQ(meant_key("schedule.warmup"), "schedule.warmup_steps");
  EXPECT_EQ(meant_key("warmup"), "schedule.warmup_steps");
  EXPECT_EQ(meant_key("steps"), "train.steps");
  EXPECT_EQ(meant_key("stpes"), "train.steps");
  EXPECT_EQ(meant_key("model.heeds"), "model.heads");
  EXPECT_EQ(meant_key("modle.width"), "model.width");
  EXPECT_EQ(meant_key("optimiser.name"), "optimizer.name");
  EXPECT_EQ(meant_key("model.lr"), "optimizer.lr");
}

TEST(MeantKey, NothingIfNothingIsNear) {
  for (const char* word : {"model.foo", "foo", "zzz.zzz", "", ".", "model.", "a.b.c"}) {
    EXPECT_EQ(meant_key(word), "") << word;
  }
}

}  // namespace
}  // namespace hyperslab::deck::test
