// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>

#include "decks.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::deck::test {
namespace {

enum class Needs : std::uint8_t { cpu, gpu };

struct Input {
  std::string name;
  std::int64_t parameters;  ///< counted by hand from the shapes
  Needs needs;
  int ranks;
  friend std::ostream& operator<<(std::ostream& out, const Input& input) {
    return out << input.name;
  }
};

const std::vector<Input>& inputs() {
  static const std::vector<Input> all = {
      {"quickstart", 3'344'064, Needs::cpu, 4},
      {"small", 128'625'408, Needs::cpu, 1},
      {"medium", 423'183'360, Needs::cpu, 1},
      {"large", 969'411'840, Needs::cpu, 1},
      {"xl", 1'998'235'200, Needs::cpu, 1},
      {"2.35b", 2'357'814'400, Needs::cpu, 1},
      {"2.7b", 3'406'809'600, Needs::cpu, 1},
      {"tiny-17m", 22'696'448, Needs::cpu, 1},
      {"parity-16h", 1'706'112, Needs::cpu, 1},
      {"gpt2-124m", 124'439'808, Needs::gpu, 1},
      {"gpt2-350m", 354'823'168, Needs::gpu, 1},
      {"gpt2-774m", 774'030'080, Needs::gpu, 1},
      {"gpt2-1558m", 1'557'611'200, Needs::gpu, 1},
      {"llama-1b", 1'498'482'688, Needs::gpu, 1},
      {"llama-8b", 8'030'261'248, Needs::gpu, 1},
      {"llama-1b-128k", 1'498'482'688, Needs::gpu, 2},
      {"llama-8b-128k", 8'030'261'248, Needs::gpu, 4},
      {"cs336-8b", 8'125'698'048, Needs::gpu, 2},
      {"wikitext103-12l", 123'653'376, Needs::gpu, 1},
      {"wikitext103-12l-1024", 123'653'376, Needs::gpu, 1},
      {"tinystories-17m", 22'696'448, Needs::gpu, 1},
      {"openwebtext-124m", 124'439'808, Needs::gpu, 1},
      {"fineweb-124m", 124'439'808, Needs::gpu, 1},
      {"quickstart-images", 821'644, Needs::cpu, 4},
      {"vit-tiny-64", 2'761'928, Needs::gpu, 1},
      {"vit-cifar10", 2'692'426, Needs::gpu, 1},
      {"vit-s16-imagenet100", 21'628'132, Needs::gpu, 1},
      {"vit-s16-imagenet1k", 21'974'632, Needs::gpu, 1},
      {"vit-ti16-imagenet1k", 5'717'416, Needs::gpu, 8},
      {"vit-b16-imagenet1k", 86'567'656, Needs::gpu, 8},
      {"experts-small", 5'449'920, Needs::cpu, 2},
      {"olmoe-1b-7b", 6'919'161'856, Needs::cpu, 8},
      {"qwen3-30b-a3b", 30'532'122'624, Needs::cpu, 8},
      {"mixtral-8x7b", 46'702'792'704, Needs::cpu, 8},
      {"tune-chat", 3'344'064, Needs::cpu, 1},
  };
  return all;
}

std::string text_of(const std::string& name) {
  const std::ifstream file(std::string(HYPERSLAB_INPUTS) + "/" + name + ".yaml");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Surroundings surroundings_of(const Input& input) {
  const bool gpu = input.needs == Needs::gpu;
  return {.ranks = input.ranks, .has_cuda_device = gpu, .has_cuda_build = gpu};
}

class Inputs : public testing::TestWithParam<Input> {};

TEST_P(Inputs, AreReadAndHaveTheParametersTheyName) {
  const auto& input = GetParam();

  ASSERT_EQ(refusal(text_of(input.name), {}, surroundings_of(input)), "accepted");
  const auto config = read(text_of(input.name), {}, surroundings_of(input));
  EXPECT_EQ(config.run.name, input.name);
  EXPECT_EQ(model::parameter_count(config.model), input.parameters);
  EXPECT_EQ(read(to_yaml(config), {}, surroundings_of(input)), config);
}

/// With as few steps as a look at whether it runs takes.
TEST_P(Inputs, FitIntoTenSteps) {
  const auto& input = GetParam();
  const Surroundings surroundings = surroundings_of(input);
  const auto whole = read(text_of(input.name), {}, surroundings);

  ASSERT_EQ(refusal(text_of(input.name), {"train.steps=10"}, surroundings), "accepted");
  const auto config = read(text_of(input.name), {"train.steps=10"}, surroundings);
  EXPECT_EQ(config.train.steps, 10);
  EXPECT_EQ(config.train.epochs, 0);
  EXPECT_EQ(config.schedule.warmup_steps, std::min<std::int64_t>(whole.schedule.warmup_steps, 10));
  EXPECT_EQ(refusal(text_of(input.name), {"checkpoint.every=0"}, surroundings), "accepted");
}

/// Train and eval read validate_batches batches of global_batch samples: 10 million tokens at most.
TEST_P(Inputs, ValidateInAShortTime) {
  const auto config = read(text_of(GetParam().name), {}, surroundings_of(GetParam()));

  EXPECT_LE(config.train.validate_batches * config.train.global_batch * config.model.context,
            20 * 512 * 1024);
}

INSTANTIATE_TEST_SUITE_P(All, Inputs, testing::ValuesIn(inputs()));

TEST(Inputs, EveryDeckIsInTheTable) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(HYPERSLAB_INPUTS)) {
    const auto name = entry.path().stem().string();
    const bool is_deck = entry.path().extension() == ".yaml";
    if (is_deck && !name.starts_with("test_")) files.insert(name);
  }
  std::set<std::string> table;
  for (const auto& input : inputs()) table.insert(input.name);

  EXPECT_EQ(files, table);
}

TEST(Spec, ParametersOfEveryPart) {
  model::ModelSpec spec = {.layers = 2,
                           .width = 6,
                           .heads = 3,
                           .kv_heads = 1,
                           .ffn_width = 5,
                           .vocabulary = 11,
                           .context = 7};
  // Matrices: query and output 36 each, key and value 12 each, up and down 30 each.
  const std::int64_t block_matrices = 36 + 36 + 12 + 12 + 30 + 30;
  // Biases: query 6, key 2, value 2, output 6, up 5, down 6; two norms of 12.
  const std::int64_t block_vectors = 6 + 2 + 2 + 6 + 5 + 6 + 24;

  EXPECT_EQ(parameter_count(spec), 2 * (block_matrices + block_vectors) + 12 + 66 + 42);
  EXPECT_EQ(matmul_parameter_count(spec), 2 * block_matrices + 66);

  spec.norm_place = model::NormPlace::post;  // no final norm
  spec.tie_embeddings = false;
  EXPECT_EQ(parameter_count(spec), 2 * (block_matrices + block_vectors) + 132 + 42);
  EXPECT_EQ(matmul_parameter_count(spec), 2 * block_matrices + 66);

  spec.bias = false;  // a layernorm then has a weight alone
  spec.position = model::Position::sinusoidal;
  spec.activation = ops::Activation::geglu;
  EXPECT_EQ(parameter_count(spec), 2 * (block_matrices + 30 + 12) + 132);

  spec.norm = ops::NormKind::none;
  EXPECT_EQ(parameter_count(spec), 2 * (block_matrices + 30) + 132);
}

TEST(Spec, FlopsPerToken) {
  const auto config = read(text_of("gpt2-124m"), {}, surroundings_of(inputs()[9]));
  const double N = 12.0 * 12 * 768 * 768 + 50257.0 * 768;

  EXPECT_DOUBLE_EQ(flops_per_token(config.model, 1024, true), 6 * N + 6.0 * 12 * 768 * 1024);
  EXPECT_DOUBLE_EQ(flops_per_token(config.model, 1024, false), 6 * N + 12.0 * 12 * 768 * 1024);
  train::Config tuned = config;
  tuned.adapter.rank = 8;
  EXPECT_DOUBLE_EQ(train::flops_per_token(config, 1024, true), 6 * N + 6.0 * 12 * 768 * 1024);
  EXPECT_DOUBLE_EQ(train::flops_per_token(tuned, 1024, true), 4 * N + 6.0 * 12 * 768 * 1024);
  const KeyShares documents = {.all = 0.25, .windowed = 0.5};
  EXPECT_DOUBLE_EQ(train::flops_per_token(config, 1024, documents),
                   6 * N + 0.25 * 6 * 12 * 768 * 1024);
  train::Config windowed = config;
  windowed.model.scores.window = 512;  // three quarters of the causal half
  windowed.model.scores.full_every = 3;
  EXPECT_DOUBLE_EQ(train::flops_per_token(windowed, 1024, documents),
                   6 * N + (0.25 * 4 + 0.5 * 0.75 * 8) * 6 * 768 * 1024);
}

}  // namespace
}  // namespace hyperslab::deck::test
