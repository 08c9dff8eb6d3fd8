// SPDX-License-Identifier: Apache-2.0
// Generation on a GPU: texts whose tokens are guessed are those without guesses.
#include <gtest/gtest.h>

#include "generate/drafted_texts.hpp"
#include "gpu/model_run.hpp"

namespace hyperslab {
namespace {

using generate::drawn_at;
using generate::Generator;
using generate::tell;
using generate::Told;

constexpr const char* kDraftsDeck = R"(
run: {name: drafts, seed: 5, device: cuda}
model: {family: llama, layers: 2, width: 256, heads: 4, kv_heads: 2, vocabulary: 67, context: 40}
data: {train: [synthetic]}
train: {steps: 1, global_batch: 1, microbatch: 1}
)";

class GpuModelDrafts : public test::GpuTest {};

/// One text has a cache without pages, several have pages; five and eight rows fill frames.
TEST_F(GpuModelDrafts, TextsOfTheLikeliestTokensAreThoseWithoutDrafts) {
  const auto small =
      test::read_model(kDraftsDeck, test::Overrides{"model.layers=1", "model.width=128"});
  for (const test::Overrides& kind :
       {test::Overrides{"precision.compute=fp32"}, test::Overrides{"run.deterministic=true"}}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    const auto config = test::read_model(kDraftsDeck, kind);
    Generator plain(test::world(), config, nullptr, {.rows = 3});
    const Told expected = tell(plain, drawn_at(0, 70));
    for (const Dim rows : {1, 3, 5, 8}) {
      Generator looked_up(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 5});
      const Told found = tell(looked_up, drawn_at(0, 70));
      EXPECT_EQ(found.texts, expected.texts) << rows;
      EXPECT_GT(found.stats.drafts.accepted, 20) << rows;
      Generator drafting(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 4}, {},
                         {.config = &small});
      EXPECT_EQ(tell(drafting, drawn_at(0, 70)).texts, expected.texts) << rows;
    }
  }
}

/// Rounding may decide between equally likely tokens, so that texts are not compared.
TEST_F(GpuModelDrafts, HalfPrecisionTakesDrafts) {
  const auto config = test::read_model(
      kDraftsDeck, test::Overrides{"precision.compute=bf16", "model.context=300",
                                   "model.tie_embeddings=true", "model.embedding_scale=1000"});
  for (const Dim rows : {1, 8}) {
    for (const auto* model : {static_cast<const train::Config*>(nullptr), &config}) {
      Generator generator(test::world(), config, nullptr, {.rows = rows, .draft_tokens = 7}, {},
                          {.config = model});
      for (const double temperature : {0.0, 0.8}) {
        const Told found = tell(generator, drawn_at(temperature, 60));
        EXPECT_EQ(found.stats.tokens, 8 * 60);
        EXPECT_GT(found.stats.drafts.accepted, temperature == 0 ? 8 * 45 : 8 * 15)
            << "such a model repeats its last token";
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab
