// SPDX-License-Identifier: Apache-2.0
// A stage on the CPU with its memory and one batch, for tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/model/transformer.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Three blocks of width 32.
inline model::ModelSpec small_model(model::Family family) {
  model::ModelSpec spec = model::preset(family);
  spec.layers = 3;
  spec.width = 32;
  spec.heads = 4;
  spec.kv_heads = family == model::Family::llama ? 2 : 4;
  spec.ffn_width = 48;
  spec.vocabulary = 101;
  spec.context = 16;
  return spec;
}

inline model::StageOptions small_stage(Dim B, Dim T, bool training) {
  model::StageOptions out;
  out.B = B;
  out.T = T;
  out.training = training;
  if (!training) out.generation = model::Generation::cached;
  out.seed = 3;
  out.logits_bytes = 4096;
  return out;
}

/// A stage that holds a whole model, planned on meta first.
class StageHarness {
 public:
  using Make = std::function<std::unique_ptr<model::Architecture>()>;
  StageHarness(const model::ModelSpec& spec, const model::StageOptions& options)
      : StageHarness([=] { return std::make_unique<model::Transformer>(spec, options); }, options,
                     spec.vocabulary) {}
  StageHarness(const Make& make, const model::StageOptions& options, Dim vocabulary)
      : options_(options), vocabulary_(vocabulary) {
    model::Arenas measuring = model::Arenas::measuring();
    Context meta(Device::meta);
    sharding::Presence measured;
    model::Stage planned(make(), options, measuring, measured);
    run_once(planned, meta);
    arenas_.emplace(model::Arenas::real(Device::cpu, measuring.used(), false));
    ctx = std::make_unique<Context>(Device::cpu, meta.workspace_high_water());
    stage.emplace(make(), options, *arenas_, presence);
    stage->initialize(*ctx);
    sums = Tensor(Device::cpu, DType::f32, {ops::kSumCount});
    input.step = 1;
    input.inverse_weights = 1.0F / static_cast<float>(options.B * options.T);
    if (options.training) make_moments();
    random_batch(7);
  }

  /// Tokens and targets by the seed; the rest follows from them.
  void random_batch(std::uint64_t seed) {
    const Batch& batch = stage->batch({});
    if (!batch.tokens) return;  // of images, which the caller makes
    const auto tokens = batch.tokens.span<std::int32_t>();
    const auto targets = batch.targets.span<std::int32_t>();
    const auto vocabulary = static_cast<std::uint32_t>(vocabulary_);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const PhiloxCounter words = philox(philox_counter(i, 1), seed);
      tokens[i] = static_cast<std::int32_t>(words.x[0] % vocabulary);
      targets[i] = static_cast<std::int32_t>(words.x[1] % vocabulary);
    }
    const auto index = batch.token_sort_index.span<std::int32_t>();
    for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(i);
    std::ranges::stable_sort(index, {},
                             [&](std::int32_t i) { return tokens[static_cast<std::size_t>(i)]; });
    const auto positions = batch.sample_position.span<std::int64_t>();
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
  }
  /// Mean loss of a forward pass.
  double forward(model::Mode mode) {
    ops::begin_step(*ctx, input, &state, sums.view());
    for (int unit = 0; unit < stage->units(); ++unit) {
      stage->forward(*ctx, {}, unit, mode, {&state, sums.view()}, nn::Accumulate::no);
    }
    const float* sum = sums.view().data<float>();
    return sum[ops::kSumLoss] / sum[ops::kSumTokens];
  }
  void backward() {
    for (int unit = stage->units() - 1; unit >= 0; --unit) {
      stage->backward(*ctx, {}, unit, {&state, sums.view()}, nn::Accumulate::no);
    }
  }
  /// One step of AdamW on the batch; returns its loss before the step.
  double train_step(float learning_rate) {
    input.learning_rate = learning_rate;
    const double loss = forward(model::Mode::train);
    backward();
    const param::ParamGroup& params = stage->params().trained();
    std::array<ops::StepResult, ops::kResultRing> results{};
    ops::finalize_step(*ctx, {1.0F, 0.9F, 0.95F}, sums.view(), &state, results.data());
    ops::adamw(*ctx, {}, &state,
               {params.master().data, presence.gradients().sums().data, {}, decay_.view()},
               exp_avg_.view(), exp_avg_sq_.view());
    return loss;
  }

  std::unique_ptr<Context> ctx;
  sharding::Presence presence;
  std::optional<model::Stage> stage;
  Tensor sums;
  ops::StepInput input;
  ops::StepState state;

 private:
  void make_moments() {
    const Dim size = stage->params().trained().flat_size();
    exp_avg_ = filled_tensor(DType::f32, {size}, 0);
    exp_avg_sq_ = filled_tensor(DType::f32, {size}, 0);
    decay_ = filled_tensor(DType::f32, {size / ops::kDecayGranule}, 0);
    const View gradients = presence.gradients().sums().data;
    std::memset(gradients.raw(), 0, gradients.bytes());
  }
  void run_once(model::Stage& planned, Context& meta) const {
    const View none(nullptr, DType::f32, Device::meta, {ops::kSumCount});
    for (int unit = 0; unit < planned.units(); ++unit) {
      planned.forward(meta, {}, unit,
                      options_.training ? model::Mode::train : model::Mode::evaluate,
                      {nullptr, none}, nn::Accumulate::no);
    }
    for (int unit = planned.units() - 1; unit >= 0 && options_.training; --unit) {
      planned.backward(meta, {}, unit, {nullptr, none}, nn::Accumulate::no);
    }
    if (options_.generation != model::Generation::cached) return;
    const View tokens(nullptr, DType::i32, Device::meta, {options_.B, options_.T});
    const View logits(nullptr, DType::f32, Device::meta,
                      {options_.B, planned.results().logits_columns});
    planned.decode(meta, tokens, 0, logits);
  }
  model::StageOptions options_;
  Dim vocabulary_;
  std::optional<model::Arenas> arenas_;
  Tensor exp_avg_;
  Tensor exp_avg_sq_;
  Tensor decay_;
};

}  // namespace hyperslab::test
