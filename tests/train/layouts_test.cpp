// SPDX-License-Identifier: Apache-2.0
// Every axis against one rank, tensor by tensor, over layouts drawn with a fixed seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "hyperslab/core/error.hpp"
#include "hyperslab/train/parity.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::world;

constexpr int kSteps = 3;

/// Overrides of the model and the batch, and those of the layout.
struct Case {
  std::vector<std::string> model;
  std::vector<std::string> layout;
  [[nodiscard]] std::string str() const {
    std::string text;
    for (const auto* part : {&model, &layout}) {
      for (const std::string& set : *part) text += (text.empty() ? "" : " ") + set;
    }
    return text;
  }
};

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : random_(seed) {}
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + static_cast<std::ptrdiff_t>(random_() % values.size()));
  }

  Case next(int ranks) {
    Case out;
    const auto set = [](std::vector<std::string>& to, const char* key, const auto& value) {
      to.push_back(fmt::format("{}={}", key, value));
    };
    const int tensor = divisor(ranks);
    const int pipeline = divisor(ranks / tensor);
    const int data = ranks / tensor / pipeline;
    const int microbatches = one_of({1, 2, 3, 4, 5, 6, 8, 9});
    const int microbatch = one_of({1, 2});
    set(out.model, "model.family", one_of<const char*>({"gpt2", "llama"}));
    set(out.model, "model.tie_embeddings", one_of({true, false}));
    set(out.model, "model.kv_heads", one_of({8, 4, 2, 1}));
    set(out.model, "model.attention", one_of<const char*>({"fused", "reference"}));
    set(out.model, "model.dropout", one_of({0.0, 0.0, 0.1}));
    set(out.model, "model.norm_place", one_of<const char*>({"pre", "pre", "pre", "post"}));
    set(out.model, "train.microbatch", microbatch);
    set(out.model, "train.global_batch", microbatch * microbatches * data);
    const char* schedule = one_of<const char*>({"gpipe", "1f1b", "interleaved", "zero_bubble"});
    set(out.layout, "parallel.data", data);
    set(out.layout, "parallel.tensor", tensor);
    set(out.layout, "parallel.pipeline", pipeline);
    set(out.layout, "parallel.sequence", tensor > 1 && one_of({true, false}));
    set(out.layout, "parallel.schedule", schedule);
    if (std::string(schedule) == "interleaved" && pipeline > 1) {
      set(out.layout, "parallel.virtual_stages", one_of({1, 2, 2, 3}));
    }
    set(out.layout, "parallel.zero", one_of({0, 1, 2}));
    set(out.layout, "parallel.bucket_mib", one_of({0.001, 0.01, 16.0}));
    set(out.layout, "memory.recompute", one_of<const char*>({"none", "selective", "full"}));
    return out;
  }

 private:
  int divisor(int number) {
    for (;;) {
      const int candidate = one_of({1, 2, 4, 8});
      if (number % candidate == 0) return candidate;
    }
  }
  std::mt19937 random_;
};

/// Four blocks of eight heads; the vocabulary divides by no number of ranks.
constexpr const char* kDeck = R"(
run: {name: layouts, seed: 11}
model: {family: gpt2, layers: 4, width: 32, heads: 8, ffn_width: 48, vocabulary: 67, context: 8}
data: {train: [synthetic]}
optimizer: {lr: 3.0e-3, clip_norm: 0.5}
schedule: {name: cosine, warmup_steps: 2}
train: {steps: 60, global_batch: 8}
)";

train::Config read(std::vector<std::string> overrides, const std::vector<std::string>& more,
                   int ranks) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  deck::Surroundings surroundings;
  surroundings.ranks = ranks;
  return deck::read_deck(kDeck, "layouts.yaml", overrides, surroundings);
}

/// Legal layouts for the ranks that were started, each once.
std::vector<Case> layouts(int count) {
  Draw draw(static_cast<std::uint32_t>(1000 + world().size()));
  std::set<std::string> seen;
  std::vector<Case> out;
  while (std::ssize(out) < count) {
    const Case next = draw.next(world().size());
    try {
      (void)read(next.model, next.layout, world().size());
    } catch (const Error&) {
      continue;  // a rule of the deck refuses it
    }
    if (seen.insert(next.str()).second) out.push_back(next);
  }
  return out;
}

class Layouts : public testing::TestWithParam<int> {};

TEST_P(Layouts, AgreeWithOneRankTensorByTensor) {
  const int all = GetParam();
  for (const Case& layout : layouts(all)) {
    SCOPED_TRACE(layout.str());
    const train::Config many = read(layout.model, layout.layout, world().size());
    const train::Config one = read(layout.model, {}, 1);
    const train::LayoutTrace found = train::trace_layout(world(), many, kSteps);
    const train::LayoutTrace wanted = train::trace_layout(world(), one, kSteps);
    if (world().rank() != 0) continue;
    const train::ParityReport report = train::compare(wanted, found, {});
    EXPECT_TRUE(report.agrees) << report.rows.front().tensor << " "
                               << report.rows.front().difference << ", loss "
                               << report.loss_difference << " at step " << report.worst_step;
    if (!report.agrees) fmt::print("{}\n", layout.str());
  }
}

INSTANTIATE_TEST_SUITE_P(Drawn, Layouts, testing::Values(30));

TEST(Layouts, TheSameLayoutTwiceGivesTheSameBits) {
  for (const Case& layout : layouts(6)) {
    const train::Config config = read(layout.model, layout.layout, world().size());
    const train::LayoutTrace first = train::trace_layout(world(), config, kSteps);
    const train::LayoutTrace second = train::trace_layout(world(), config, kSteps);
    EXPECT_EQ(first.losses, second.losses) << layout.str();
    EXPECT_EQ(first.gradients, second.gradients) << layout.str();
  }
}

}  // namespace
}  // namespace hyperslab
