// SPDX-License-Identifier: Apache-2.0
// What a cached decode says of a token, against the trainer's forward pass over the whole text.
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "hyperslab/ops/loss.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"
#include "unequal_texts.hpp"

namespace hyperslab::generate {
namespace {

using test::small_config;

/// Samples that are the texts.
class GivenTexts final : public io::Samples {
 public:
  GivenTexts(Prompts texts, Dim T) : texts_(std::move(texts)), T_(T) {}
  [[nodiscard]] std::int64_t size() const override { return std::ssize(texts_); }
  [[nodiscard]] Dim targets() const override { return T_; }
  [[nodiscard]] bool may_ignore() const override { return true; }
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override {
    return std::ssize(texts_[static_cast<std::size_t>(index)]) - 1;
  }
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override {
    const auto [B, T] = out.tokens.dims<2>("tokens");
    for (Dim b = 0; b < B; ++b) {
      const bool is_here = first + b < end;
      const auto& text = texts_[static_cast<std::size_t>(is_here ? first + b : 0)];
      for (Dim t = 0; t < T; ++t) {
        const auto at = static_cast<std::size_t>(t);
        if (out.tokens)
          out.tokens.data<std::int32_t>()[b * T + t] = at < text.size() ? text[at] : 0;
        if (!out.targets) continue;
        const bool counts = is_here && at + 1 < text.size();
        out.targets.data<std::int32_t>()[b * T + t] = counts ? text[at + 1] : ops::kIgnoredTarget;
      }
    }
  }

 private:
  Prompts texts_;
  Dim T_;
};

/// Keeps the loss of every token that follows, from the logits that come with it, as the trainer's
/// loss computes it.
class Losses final : public TokenListener {
 public:
  explicit Losses(std::size_t prompts) : ids(prompts), of(prompts) {}
  bool token(std::size_t prompt, const NextToken& next) override {
    std::vector<float> logits(next.logits.begin(), next.logits.end());
    const auto V = static_cast<Dim>(logits.size());
    std::int32_t target = next.id;
    std::array<float, ops::kTargetScoreCount> score{};
    std::array<float, ops::kSumCount> sums{};
    const auto view = [](auto* data, DType dtype, const Shape& shape) {
      return View(data, dtype, Device::cpu, shape);
    };
    ops::StepState state;
    ops::softmax_cross_entropy(ctx_,
                               {view(logits.data(), DType::f32, {1, V}),
                                {0, V, V},
                                view(&target, DType::i32, {1}),
                                view(score.data(), DType::f32, {1, ops::kTargetScoreCount})},
                               &state, ops::WithGradient::no,
                               view(sums.data(), DType::f32, {ops::kSumCount}));
    ids[prompt].push_back(next.id);
    of[prompt].push_back(score[ops::kScoreLoss]);
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return true; }

  Prompts ids;
  std::vector<std::vector<float>> of;

 private:
  Context ctx_{Device::cpu, std::size_t{1} << 20};
};

/// What a generator with so many rows says of the tokens that it adds.
void expect_same_bits(const std::vector<std::string>& overrides, Dim rows) {
  SCOPED_TRACE(testing::PrintToString(overrides) + ", rows " + std::to_string(rows));
  std::vector<std::string> all = overrides;
  all.insert(all.end(), {"run.deterministic=true", "model.context=24"});
  const train::Config config = small_config(all, 1);
  Prompts prompts = unequal_prompts();
  std::erase_if(prompts, [](const auto& prompt) { return prompt.size() > 12; });
  SamplingOptions options = options_of(1.0, 12);
  options.stop_token = -1;
  Generator generator(test::world(), config, nullptr, {.rows = rows});
  Losses found(prompts.size());
  (void)generator.generate(prompts, options, found);

  Prompts whole = prompts;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    whole[i].insert(whole[i].end(), found.ids[i].begin(), found.ids[i].end());
  }
  const auto mesh = train::make_mesh(test::world(), config, Device::cpu);
  train::TrainerOptions forward = train::trainer_options(config, 0, false);
  forward.B = 3;
  test::SmallRun run(config, *mesh, 0, forward);
  const Dim T = run.trainer().sequence();
  const GivenTexts samples(whole, T);
  std::map<std::int64_t, std::vector<float>> expected;
  (void)run.trainer().evaluate(
      samples, samples.size(), test::world(), {.scores = [&](std::int64_t first, CView scores) {
        const auto values = scores.span<float>();
        const auto row = static_cast<std::size_t>(T * ops::kTargetScoreCount);
        for (Dim b = 0; b < scores.shape()[0] && first + b < samples.size(); ++b) {
          const auto part = values.subspan(static_cast<std::size_t>(b) * row, row);
          expected[first + b].assign(part.begin(), part.end());
        }
      }});
  std::size_t differ = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::size_t k = 0; k < found.of[i].size(); ++k) {
      const std::size_t position = prompts[i].size() + k - 1;
      const float loss =
          expected.at(static_cast<std::int64_t>(i))[position * ops::kTargetScoreCount];
      EXPECT_NEAR(found.of[i][k], loss, 1e-5);
      differ += std::bit_cast<std::uint32_t>(found.of[i][k]) != std::bit_cast<std::uint32_t>(loss);
    }
  }
  EXPECT_EQ(differ, 0U);
}

TEST(SameBits, ADecodedTokenHasTheLogProbabilityOfTheForwardPass) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
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
    for (const Dim rows : {1, 4}) expect_same_bits(overrides, rows);
  }
}

}  // namespace
}  // namespace hyperslab::generate
