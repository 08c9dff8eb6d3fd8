// SPDX-License-Identifier: Apache-2.0
// What a generator says of a token, against the trainer's forward pass over the whole text.
#include "generate/same_bits.hpp"

#include "train/small_run.hpp"
#include "unequal_texts.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

Prompts short_prompts() {
  Prompts prompts = unequal_prompts();
  std::erase_if(prompts, [](const auto& prompt) { return prompt.size() > 12; });
  return prompts;
}

/// Tokens in that a generator and a forward pass in microbatches of B differ.
std::size_t differing(std::vector<std::string> overrides, const GeneratorSize& size, Dim B) {
  overrides.emplace_back("model.context=24");
  const train::Config config = small_config(overrides, 1);
  train::TrainerOptions forward = train::trainer_options(config, 0, false);
  forward.B = B;
  return test::differing_losses(config, size, forward, short_prompts(), 12);
}

TEST(SameBits, ADecodedTokenHasTheLogProbabilityOfTheForwardPass) {
  for (std::vector<std::string> overrides : std::vector<std::vector<std::string>>{
           {"model.family=gpt2", "model.width=24"},
           {"model.family=gpt2", "model.width=512", "model.layers=2"},
           {"model.family=llama", "model.width=512", "model.layers=2", "model.kv_heads=2"},
           {"model.family=llama", "model.width=96", "model.window=5", "model.qk_norm=head"},
           {"model.family=llama", "model.width=96", "precision.compute=bf16"},
           {"model.family=gpt2", "model.width=96", "adapter.rank=4"},
           {"model.family=gpt2", "model.width=96", "model.attention_softcap=3",
            "model.logit_softcap=2"},
           {"model.family=llama", "model.width=96", "model.attention_sinks=true"},
           {"model.family=llama", "model.width=96", "model.mup_base_width=32",
            "model.mup_base_head_width=8"}}) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    overrides.emplace_back("run.deterministic=true");
    for (const Dim rows : {1, 4}) {
      EXPECT_EQ(differing(overrides, {.rows = rows}, 3), 0) << "rows " << rows;
    }
  }
}

/// As on a GPU with run.deterministic; on the CPU it holds without.
TEST(SameBits, ATokenOfATextReadWholeHasTheLogProbabilityOfTheForwardPass) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"model.family=gpt2", "model.width=96"},
           {"model.family=llama", "model.width=512", "model.layers=2", "model.kv_heads=2"},
           {"model.family=llama", "model.width=96", "precision.compute=bf16"},
           {"model.family=gpt2", "model.width=96", "model.logit_softcap=2",
            "model.mup_base_width=32"},
           {"model.family=llama", "model.width=96", "data.documents=masked", "data.end_token=0"}}) {
    SCOPED_TRACE(testing::PrintToString(overrides));
    for (const Dim rows : {1, 5}) {
      const GeneratorSize size = {.rows = rows, .generation = model::Generation::whole};
      EXPECT_EQ(differing(overrides, size, 0), 0) << "rows " << rows;
    }
  }
}

}  // namespace
}  // namespace hyperslab::generate
