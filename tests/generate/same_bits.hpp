// SPDX-License-Identifier: Apache-2.0
// What a generator says of the tokens that it adds, against a trainer's forward pass over the whole
// text, bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/train/setup.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {

/// Samples that are the texts.
class GivenTexts final : public io::Samples {
 public:
  GivenTexts(generate::Prompts texts, Dim T) : texts_(std::move(texts)), T_(T) {}
  [[nodiscard]] std::int64_t size() const override { return std::ssize(texts_); }
  [[nodiscard]] Dim targets() const override { return T_; }
  [[nodiscard]] bool may_ignore() const override { return true; }
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override {
    return std::ssize(texts_[static_cast<std::size_t>(index)]) - 1;
  }
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override {
    const auto [B, T] = out.tokens.dims<2>("tokens");
    if (out.first_keys) std::ranges::fill(out.first_keys.span<std::int32_t>(), 0);
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
  generate::Prompts texts_;
  Dim T_;
};

/// Keeps the loss of every token that follows, from the logits that come with it, as the trainer's
/// loss computes it on its device.
class Losses final : public generate::TokenListener {
 public:
  Losses(std::size_t prompts, Device device, DType compute)
      : ids(prompts), of(prompts), compute_(compute), ctx_(device, std::size_t{1} << 24) {}
  bool token(std::size_t prompt, const generate::NextToken& next) override {
    ids[prompt].push_back(next.id);
    of[prompt].push_back(loss(next));
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return true; }

  generate::Prompts ids;
  std::vector<std::vector<float>> of;

 private:
  float loss(const generate::NextToken& next) {
    const auto V = static_cast<Dim>(next.logits.size());
    const Dim multiple = ctx_.device() == Device::cuda ? 128 : 1;  // columns of a trainer's logits
    const Dim columns = (V + multiple - 1) / multiple * multiple;
    Tensor wide(Device::cpu, DType::f32, {1, columns});
    std::ranges::fill(std::ranges::copy(next.logits, wide.view().data<float>()).out,
                      wide.view().data<float>() + columns, 0.0F);
    Tensor rounded(Device::cpu, compute_, {1, columns});
    Context host(Device::cpu, 0);
    ops::cast(host, wide.view(), rounded.view());
    Tensor target(Device::cpu, DType::i32, {1});
    target.view().data<std::int32_t>()[0] = next.id;

    Tensor logits = on_device(rounded.view());
    const Tensor on_target = on_device(target.view());
    Tensor score(ctx_.device(), DType::f32, {1, ops::kTargetScoreCount});
    Tensor sums(ctx_.device(), DType::f32, {ops::kSumCount});
    Tensor state(ctx_.device(), DType::u8, {static_cast<Dim>(sizeof(ops::StepState))});
    ops::softmax_cross_entropy(ctx_, {logits.view(), {0, V, V}, on_target.view(), score.view()},
                               reinterpret_cast<ops::StepState*>(state.view().data<std::uint8_t>()),
                               ops::WithGradient::no, sums.view());
    Tensor found(Device::cpu, DType::f32, {1, ops::kTargetScoreCount});
    copy(ctx_, score.view(), found.view());
    synchronize(ctx_);
    return found.view().data<float>()[ops::kScoreLoss];
  }
  Tensor on_device(CView host) {
    Tensor tensor(ctx_.device(), host.dtype(), host.shape());
    copy(ctx_, host, tensor.view());
    return tensor;
  }

  DType compute_;
  Context ctx_;
};

/// Counts the tokens, added by a generator of `size` with random weights, whose loss differs in a
/// bit from what a trainer finds that evaluates the same texts with `forward`. Prompts and `tokens`
/// more fit into the context.
inline std::size_t differing_losses(const train::Config& config,
                                    const generate::GeneratorSize& size,
                                    const train::TrainerOptions& forward,
                                    const generate::Prompts& prompts, std::int64_t tokens) {
  generate::SamplingOptions options;
  options.temperature = 1;
  options.max_tokens = tokens;
  options.seed = 4;
  options.repetition_penalty = 1.2;
  generate::Generator generator(world(), config, nullptr, size);
  Losses found(prompts.size(), forward.device, forward.compute);
  (void)generator.generate(prompts, options, found);

  generate::Prompts whole = prompts;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    whole[i].insert(whole[i].end(), found.ids[i].begin(), found.ids[i].end());
  }
  const auto mesh = train::make_mesh(world(), config, forward.device);
  const plan::Plan plan = plan::make_plan(config, forward, 0);
  const auto trainer = train::Trainer::make(config, *mesh, forward, plan.memory);
  trainer->state().initialize();
  const Dim T = trainer->sequence();
  const GivenTexts samples(whole, T);
  std::map<std::int64_t, std::vector<float>> expected;
  (void)trainer->evaluate(
      samples, samples.size(), world(), {.scores = [&](std::int64_t first, CView scores) {
        const auto values = scores.span<float>();
        const auto row = static_cast<std::size_t>(T * ops::kTargetScoreCount);
        for (Dim b = 0; b < scores.shape()[0] && first + b < samples.size(); ++b) {
          const auto part = values.subspan(static_cast<std::size_t>(b) * row, row);
          expected[first + b].assign(part.begin(), part.end());
        }
      }});
  std::size_t differ = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(std::ssize(found.of[i]), tokens);
    for (std::size_t k = 0; k < found.of[i].size(); ++k) {
      const std::size_t position = prompts[i].size() + k - 1;
      const float loss =
          expected.at(static_cast<std::int64_t>(i))[position * ops::kTargetScoreCount];
      EXPECT_GT(loss, 0);
      differ += std::bit_cast<std::uint32_t>(found.of[i][k]) != std::bit_cast<std::uint32_t>(loss);
    }
  }
  return differ;
}

}  // namespace hyperslab::test
