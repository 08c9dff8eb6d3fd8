// SPDX-License-Identifier: Apache-2.0
// Two ranks that share a model, and one that guesses, tell the texts of one rank.
#include "drafted_texts.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

TEST(DraftingGroup, TwoRanksTellTheTextsOfOneWithAndWithoutAModelThatGuesses) {
  const std::unique_ptr<comm::World> alone = test::world().part(test::world().rank());
  const train::Config config =
      small_config({"model.family=llama", "model.kv_heads=2", "model.context=40"}, 1);
  const train::Config small =
      small_config({"model.family=llama", "model.layers=1", "model.context=30"}, 1);
  for (const train::Config* guesses : {static_cast<const train::Config*>(nullptr), &small}) {
    for (const Dim rows : {1, 3}) {
      for (const auto way : {model::Generation::cached, model::Generation::whole}) {
        Generator one(*alone, config, nullptr, {.rows = rows});
        Generator two(test::world(), config, nullptr,
                      {.rows = rows, .generation = way, .draft_tokens = 4}, {},
                      {.config = guesses});
        if (!two.leads()) {
          two.follow();
          continue;
        }
        two.let_rest();
        for (const double temperature : {0.0, 0.02}) {
          const SamplingOptions options = drawn_at(temperature, 50);
          const Told found = tell(two, options);
          EXPECT_GT(found.stats.drafts.drafted, 10);
          EXPECT_GT(found.stats.drafts.accepted, temperature == 0 ? 10 : 0);
          if (temperature > 0 && guesses != nullptr) continue;  // other draws
          EXPECT_EQ(found.texts, tell(one, options).texts);
        }
        two.let_go();
        EXPECT_FALSE(two.has_failed());
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::generate
