// SPDX-License-Identifier: Apache-2.0
// Samples whose tokens lie on several ranks against one rank that has them whole: documents, masks,
// positions, ignored targets and what else reads a token's place.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hyperslab/parity/parity.hpp"
#include "support/files.hpp"
#include "support/mpi_world.hpp"
#include "train/layouts.hpp"

namespace hyperslab {
namespace {

using test::world;

constexpr int kSteps = 3;
constexpr std::int32_t kEnd = 66;
/// Sums go in another order, as in layouts_test; weights of norms of narrow heads are small.
constexpr parity::ParityTolerance kTolerance = {.gradient = 4e-6};
constexpr int kTokens = 16 * 24 + 1;

/// Tokens of documents of 1 to 23 tokens, many of which cross borders of ranks.
std::vector<std::uint16_t> tokens_of_documents() {
  std::vector<std::uint16_t> tokens;
  int left = 3;
  for (int i = 0; i < kTokens; ++i) {
    const bool ends = --left <= 0;
    tokens.push_back(static_cast<std::uint16_t>(ends ? kEnd : (i * 31 + i / 7) % 66));
    if (ends) left = 1 + i * 11 % 23;
  }
  return tokens;
}

/// The file of these tokens, which the first rank writes.
std::string token_file() {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("hyperslab_context_" + std::to_string(world().size()) + ".bin"))
                               .string();
  if (world().rank() == 0) test::write_file(path, test::bytes_of(tokens_of_documents()));
  world().barrier();
  return path;
}

class ContextParity : public testing::TestWithParam<std::vector<const char*>> {
 protected:
  static std::vector<std::string> deck(const std::vector<const char*>& choices) {
    std::vector<std::string> all = {"model.context=16", "train.global_batch=6",
                                    "train.microbatch=3", "data.dtype=uint16",
                                    "data.train=[" + token_file() + "]"};
    all.insert(all.end(), choices.begin(), choices.end());
    return all;
  }
  static void expect_parity(const std::vector<std::string>& model,
                            const std::vector<std::string>& layout) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    const parity::LayoutTrace found =
        parity::trace_layout(world(), test::read_layout(model, layout, world().size()), kSteps);
    const parity::LayoutTrace expected =
        parity::trace_layout(world(), test::read_layout(model, {}, 1), kSteps);
    if (world().rank() != 0) return;
    const parity::ParityReport report = parity::compare(expected, found, kTolerance);
    EXPECT_TRUE(report.agrees) << report.rows.front().tensor << " "
                               << report.rows.front().difference << ", loss "
                               << report.loss_difference << " at step " << report.worst_step;
  }
};

TEST_P(ContextParity, AgreesWithOneRank) {
  const std::vector<std::string> model = deck(GetParam());
  const int ranks = world().size();
  expect_parity(model, {fmt::format("parallel.context={}", ranks)});
  expect_parity(model, {fmt::format("parallel.context={}", ranks), "parallel.zero=3",
                        "memory.recompute=full"});
  if (ranks < 4) return;
  expect_parity(model, {fmt::format("parallel.context={}", ranks / 2), "parallel.tensor=2",
                        "parallel.sequence=true", "parallel.zero=1"});
}

#define MASKED "data.documents=masked", "data.end_token=66"

INSTANTIATE_TEST_SUITE_P(
    Choices, ContextParity,
    testing::Values(std::vector<const char*>{"model.family=llama", MASKED},
                    std::vector<const char*>{"model.family=gpt2", "model.dropout=0.2", MASKED},
                    std::vector<const char*>{"model.family=llama", "data.packing=best_fit",
                                             "data.predict_starts=false", MASKED},
                    std::vector<const char*>{"model.family=llama", "model.window=5", MASKED},
                    std::vector<const char*>{"model.position=sinusoidal", MASKED},
                    std::vector<const char*>{"model.family=llama", "data.ignore_token=5",
                                             "train.z_loss=0.01", MASKED},
                    std::vector<const char*>{"model.family=llama", "model.attention_sinks=true",
                                             "model.attention_softcap=20",
                                             "model.attention=reference", MASKED},
                    std::vector<const char*>{"model.family=llama", "model.qk_norm=head",
                                             "model.mup_base_width=16"},
                    std::vector<const char*>{"model.family=llama", "adapter.rank=4",
                                             "adapter.dropout=0.3", MASKED}));

/// A token of a document changes nothing in the next one, at every border of ranks: vectors of
/// tokens that occur in the second one alone get the same gradients, bit for bit.
TEST(ContextDocuments, SeeNothingOfEachOther) {
  const int ranks = world().size();
  const std::string path = token_file();
  const std::vector<std::string> model = {"model.context=16",           "model.family=llama",
                                          "model.tie_embeddings=false", "train.global_batch=1",
                                          "train.microbatch=1",         "data.dtype=uint16",
                                          "data.train=[" + path + "]",  MASKED};
  const std::vector<std::string> layout = {fmt::format("parallel.context={}", ranks)};
  for (int border = 16 / ranks; border < 16; border += 16 / ranks) {
    std::vector<std::vector<float>> tables;
    for (const std::uint16_t first : {50, 51}) {
      std::vector<std::uint16_t> tokens(17, 40);
      tokens[0] = first;
      tokens[static_cast<std::size_t>(border - 1)] = kEnd;
      for (int i = border; i < 17; ++i) {
        tokens[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
      }
      if (world().rank() == 0) test::write_file(path, test::bytes_of(tokens));
      world().barrier();
      parity::LayoutTrace trace =
          parity::trace_layout(world(), test::read_layout(model, layout, ranks), 1);
      tables.push_back(std::move(trace.gradients["gradient/embedding.token.weight"]));
    }
    if (world().rank() != 0) continue;
    ASSERT_EQ(tables[0].size(), 67U * 32U);
    EXPECT_NE(tables[0], tables[1]) << "of the first document";
    for (std::size_t i = std::size_t{32} * static_cast<std::size_t>(border); i < 16U * 32U; ++i) {
      ASSERT_EQ(tables[0][i], tables[1][i]) << "row " << i / 32 << ", border " << border;
    }
  }
}

}  // namespace
}  // namespace hyperslab
