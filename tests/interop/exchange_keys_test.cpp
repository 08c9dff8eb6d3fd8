// SPDX-License-Identifier: Apache-2.0
// Keys of a config.json that decide numbers are used or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "exchange_config.hpp"
#include "interop/exchange_models.hpp"
#include "support/refusal.hpp"

namespace hyperslab::interop {
namespace {

using nlohmann::json;

// An unknown key may decide what the model computes: no warning is enough.
TEST(ExchangeConfig, KeysInNoTableAreRefusedUnlessTheyAreSaidToDecideNothing) {
  const std::string text = with_keys(model::Family::llama, {{"my_key", 1}, {"other", {2}}});
  const auto read = [&](const std::vector<std::string>& ignored) {
    return read_foreign_config(text, "hf/config.json", {std::nullopt, ignored});
  };

  test::expect_error(ExitCode::checkpoint,
                     {"hf/config.json", "my_key, other are not known here and may decide",
                      "--ignore-config-key my_key --ignore-config-key other"},
                     [&] { (void)read({}); });
  test::expect_error(ExitCode::checkpoint, {"other is not known here"},
                     [&] { (void)read({"my_key"}); });
  test::expect_error(ExitCode::checkpoint, {"hidden_size is known here and cannot be ignored"},
                     [&] {
                       (void)read({"my_key", "other", "hidden_size"});
                     });

  EXPECT_THAT(read({"my_key", "other", "of_another_file"}).warnings, ::testing::IsEmpty());
}

// transformers 5.24 moves the key into the rope parameters when the angles are computed, before
// what they hold (RotaryEmbeddingConfigMixin.standardize_rope_params).
TEST(ExchangeConfig, TheOriginalContextBesideTheRopeIsUsed) {
  const auto rope = [](const json& scaling) {
    return read_foreign_config(
               with_keys(model::Family::llama, {{"max_position_embeddings", 512},
                                                {"original_max_position_embeddings", 64},
                                                {"rope_scaling", scaling}}),
               "")
        .spec.rope;
  };
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}};
  json inner = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 128}};

  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", 8.0}}).original_context, 64);
  EXPECT_EQ(rope(llama3).original_context, 64);
  EXPECT_EQ(rope(inner).original_context, 64);
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", nullptr}}).factor, 8);
  EXPECT_EQ(rope({{"rope_type", "linear"}, {"factor", 2.0}}).original_context, 0);
}

// transformers 5.24 fails on these, or computes with one of two objects.
TEST(ExchangeConfig, RopesThatTransformersRefusesAreRefused) {
  const auto refused = [](const json& keys, const std::string& text) {
    test::expect_error(ExitCode::checkpoint, {text}, [&] {
      (void)read_foreign_config(with_keys(model::Family::llama, keys), "");
    });
  };
  refused({{"rope_scaling", {{"rope_type", nullptr}, {"type", "linear"}, {"factor", 2.0}}}},
          "rope_scaling has rope_type null");
  refused({{"rope_scaling", {{"type", "linear"}}}}, "rope of type linear has no factor");
  refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
          "llama3 needs low_freq_factor and high_freq_factor");
  refused({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {"attention_factor", 0.0}}}},
          "attention_factor is 0");
  refused({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
           {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}},
          "rope_parameters and rope_scaling differ");
}

}  // namespace
}  // namespace hyperslab::interop
