// SPDX-License-Identifier: Apache-2.0
// The whole model against an independent float64 NumPy reference: activations, loss, gradients, and
// weights after two AdamW steps, in f64 and f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "golden_file.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "support/tensors.hpp"

namespace hyperslab {
namespace {

using test::Golden;

template <class T>
T choose(const std::map<std::string, T>& choices, const std::string& name) {
  return choices.at(name);
}

model::ModelSpec spec_of(const Golden& golden) {
  using ops::Activation;
  using ops::NormKind;
  model::ModelSpec spec;
  spec.layers = golden.dim("layers");
  spec.width = golden.dim("width");
  spec.heads = golden.dim("heads");
  spec.kv_heads = golden.dim("kv_heads");
  spec.ffn_width = golden.dim("ffn_width");
  spec.vocabulary = golden.dim("vocabulary");
  spec.context = golden.dim("context");
  spec.position = choose<model::Position>({{"learned", model::Position::learned},
                                           {"sinusoidal", model::Position::sinusoidal},
                                           {"rope", model::Position::rope},
                                           {"none", model::Position::none}},
                                          golden.text("position"));
  spec.rope.theta = golden.number("rope_theta");
  spec.norm = choose<NormKind>({{"layernorm", NormKind::layernorm},
                                {"rmsnorm", NormKind::rmsnorm},
                                {"none", NormKind::none}},
                               golden.text("norm"));
  spec.norm_place =
      golden.text("norm_place") == "post" ? model::NormPlace::post : model::NormPlace::pre;
  spec.norm_eps = golden.number("norm_eps");
  spec.activation = choose<Activation>({{"gelu", Activation::gelu},
                                        {"gelu_tanh", Activation::gelu_tanh},
                                        {"relu", Activation::relu},
                                        {"silu", Activation::silu},
                                        {"relu_squared", Activation::relu_squared},
                                        {"swiglu", Activation::swiglu},
                                        {"geglu", Activation::geglu}},
                                       golden.text("activation"));
  spec.bias = golden.number("bias") != 0;
  spec.tie_embeddings = golden.number("tie_embeddings") != 0;
  return spec;
}

struct Case {
  std::string file;
  DType compute;
  model::AttentionPath attention;
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  const bool reference = info.param.attention == model::AttentionPath::reference;
  return info.param.file + "_" + std::string(name_of(info.param.compute)) +
         (reference ? "_reference" : "_fused");
}

/// A stage that holds the golden weights and one golden batch.
class GoldenModel : public testing::TestWithParam<Case> {
 protected:
  GoldenModel() : golden_(GetParam().file) {
    spec_ = spec_of(golden_);
    spec_.attention = GetParam().attention;
    const Tensor tokens = golden_.read("tokens", DType::i32);
    options_.B = tokens.view().shape()[0];
    options_.T = tokens.view().shape()[1];
    options_.compute = GetParam().compute;
    options_.logits_bytes = 7 * 29 * size_of(options_.compute);  // several chunks
    model::Arenas measuring = model::Arenas::measuring();
    Context meta(Device::meta);
    run_on_meta(measuring, meta);
    plan_ = measuring.used();
    arenas_.emplace(model::Arenas::real(Device::cpu, plan_, true));
    ctx_ = std::make_unique<Context>(Device::cpu, meta.workspace_high_water());
    presence_.emplace();
    stage_ = std::make_unique<model::Stage>(spec_, options_, *arenas_, *presence_);
    adamw_ = optim::make_optimizer(optimizer_config(), group(), {false, arenas_->optimizer});
    stage_->initialize(*ctx_);
    adamw_->initialize(*ctx_);
    sums_ = Tensor(Device::cpu, statistics(), {ops::kSumCount});
    load();
  }

  [[nodiscard]] const param::ParamGroup& group() const { return stage_->params().trained(); }
  [[nodiscard]] DType statistics() const {
    return options_.compute == DType::f64 ? DType::f64 : DType::f32;
  }
  void run_on_meta(model::Arenas& arenas, Context& meta) {
    sharding::Presence presence;
    model::Stage stage(spec_, options_, arenas, presence);
    const param::ParamGroup& params = stage.params().trained();
    const auto adamw = optim::make_optimizer(optimizer_config(), params, {false, arenas.optimizer});
    const View sums(nullptr, statistics(), Device::meta, {ops::kSumCount});
    pass(stage, meta, {nullptr, sums});
    ops::add_norm_squared(meta, presence.gradients().sums().data, sums);
    adamw->update(meta, nullptr, presence.gradients().sums(), params.all());
  }
  [[nodiscard]] optim::OptimizerConfig optimizer_config() const {
    optim::OptimizerConfig config;
    config.betas = {golden_.number("beta1"), golden_.number("beta2")};
    config.eps = golden_.number("adam_eps");
    config.weight_decay = golden_.number("weight_decay");
    config.clip_norm = golden_.number("clip_norm");
    config.decay_embeddings = golden_.number("decay_embeddings") != 0;
    return config;
  }
  /// Copies f64 golden values into a view of the model.
  static void assign(const Tensor& from, View to) {
    const std::vector<double> values = test::to_doubles(from.view());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (to.dtype() == DType::f64)
        to.data<double>()[i] = values[i];
      else
        to.data<float>()[i] = static_cast<float>(values[i]);
    }
  }
  void load() {
    for (const param::Param& param : stage_->params().params()) {
      assign(golden_.read("weights/" + param.name), param.master);
    }
    const Batch& batch = stage_->batch({});
    const Tensor tokens = golden_.read("tokens", DType::i32);
    const Tensor targets = golden_.read("targets", DType::i32);
    std::ranges::copy(tokens.view().span<std::int32_t>(), batch.tokens.data<std::int32_t>());
    std::ranges::copy(targets.view().span<std::int32_t>(), batch.targets.data<std::int32_t>());
    const auto order = batch.token_sort_index.span<std::int32_t>();
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    const auto* ids = batch.tokens.data<std::int32_t>();
    std::ranges::stable_sort(order, {}, [&](std::int32_t index) { return ids[index]; });
    const auto positions = batch.sample_position.span<std::int64_t>();
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
    double counted = 0;
    for (const std::int32_t target : targets.view().span<std::int32_t>()) {
      counted += target >= 0 ? 1 : 0;
    }
    input_.inverse_weights = static_cast<float>(1.0 / counted);
    input_.learning_rate = static_cast<float>(golden_.number("lr"));
  }
  static void pass(model::Stage& stage, Context& ctx, const model::StepViews& step) {
    for (int unit = 0; unit < stage.units(); ++unit) {
      stage.forward(ctx, {}, unit, model::Mode::train, step, nn::Accumulate::no);
    }
    for (int unit = stage.units() - 1; unit >= 0; --unit) {
      stage.backward(ctx, {}, unit, step, nn::Accumulate::no);
    }
  }
  [[nodiscard]] double sum(int index) const {
    return test::to_doubles(sums_.view())[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] double tolerance() const { return test::golden_tolerance(options_.compute); }

  Golden golden_;
  model::ModelSpec spec_;
  model::StageOptions options_;
  model::MemoryPlan plan_;
  std::optional<model::Arenas> arenas_;
  std::unique_ptr<Context> ctx_;
  std::optional<sharding::Presence> presence_;
  std::unique_ptr<model::Stage> stage_;
  std::unique_ptr<optim::Optimizer> adamw_;
  Tensor sums_;
  ops::StepInput input_;
  ops::StepState state_;
};

TEST_P(GoldenModel, ActivationsLossAndGradients) {
  const model::StepViews step = {&state_, sums_.view()};
  input_.step = 1;
  ops::begin_step(*ctx_, input_, &state_, sums_.view());

  for (int unit = 0; unit < stage_->units(); ++unit) {
    stage_->forward(*ctx_, {}, unit, model::Mode::train, step, nn::Accumulate::no);
  }
  const double tokens = golden_.read("counted_tokens").view().data<double>()[0];
  EXPECT_EQ(sum(ops::kSumTokens), tokens);
  EXPECT_EQ(sum(ops::kSumCorrect), golden_.read("correct_tokens").view().data<double>()[0]);
  const double loss = golden_.read("loss").view().data<double>()[0];
  EXPECT_NEAR(sum(ops::kSumLoss) / tokens, loss, loss * tolerance());
  for (int unit = 0; unit + 1 < stage_->units(); ++unit) {
    const std::string name =
        unit == 0 ? "embedding" : "blocks." + std::to_string(unit - 1) + ".output";
    const Tensor expected = golden_.read("activations/" + name);
    EXPECT_LE(test::relative_difference(stage_->activation({}, unit), expected.view()), tolerance())
        << name;
  }

  for (int unit = stage_->units() - 1; unit >= 0; --unit) {
    stage_->backward(*ctx_, {}, unit, step, nn::Accumulate::no);
  }
  for (const param::Param& param : stage_->params().params()) {
    const Tensor expected = golden_.read("gradients/" + param.name);
    // The key bias has no gradient in theory if positions do not matter.
    const double floor = param.name.ends_with("key.bias") ? 1e-2 : 1e-30;
    EXPECT_LE(test::relative_difference(param.gradient, expected.view(), floor), tolerance())
        << param.name;
  }
}

TEST_P(GoldenModel, AccumulatingTwiceDoublesTheGradient) {
  const model::StepViews step = {&state_, sums_.view()};
  ops::begin_step(*ctx_, input_, &state_, sums_.view());
  pass(*stage_, *ctx_, step);
  const Tensor once = [&] {
    Tensor copy(Device::cpu, statistics(), presence_->gradients().sums().data.shape());
    std::memcpy(copy.view().raw(), presence_->gradients().sums().data.raw(), copy.view().bytes());
    return copy;
  }();

  for (int unit = 0; unit < stage_->units(); ++unit) {
    stage_->forward(*ctx_, {}, unit, model::Mode::train, step, nn::Accumulate::yes);
  }
  for (int unit = stage_->units() - 1; unit >= 0; --unit) {
    stage_->backward(*ctx_, {}, unit, step, nn::Accumulate::yes);
  }

  for (const param::Param& param : stage_->params().params()) {
    const std::vector<double> twice = test::to_doubles(param.gradient);
    const CView single = once.view().slice(param.flat_begin, param.numel());
    const std::vector<double> one = test::to_doubles(single);
    double largest = 1e-3;
    for (const double g : one) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < one.size(); ++i) {
      ASSERT_NEAR(twice[i], 2 * one[i], 1e-5 * largest) << param.name;
    }
  }
}

TEST_P(GoldenModel, TwoAdamWSteps) {
  const Tensor losses = golden_.read("adamw/losses");
  const Tensor norms = golden_.read("adamw/gradient_norms");
  for (std::int64_t i = 0; i < golden_.dim("adam_steps"); ++i) {
    const auto at = static_cast<std::size_t>(i);
    input_.step = i + 1;
    ops::begin_step(*ctx_, input_, &state_, sums_.view());
    pass(*stage_, *ctx_, {&state_, sums_.view()});
    ops::add_norm_squared(*ctx_, presence_->gradients().sums().data, sums_.view());
    std::array<ops::StepResult, ops::kResultRing> results{};
    ops::finalize_step(*ctx_, adamw_->finalize_constants(), sums_.view(), &state_, results.data());
    adamw_->update(*ctx_, &state_, presence_->gradients().sums(), group().all());

    const ops::StepResult& result = results[static_cast<std::size_t>(i + 1)];
    const double slack = i == 0 ? 1 : 20;  // Adam divides small gradients by themselves
    EXPECT_NEAR(result.loss_sum / result.tokens, losses.view().data<double>()[at],
                slack * tolerance() * losses.view().data<double>()[at]);
    EXPECT_NEAR(result.gradient_norm, norms.view().data<double>()[at],
                slack * 5 * tolerance() * norms.view().data<double>()[at]);
  }
  for (const param::Param& param : stage_->params().params()) {
    if (param.name.ends_with("key.bias")) continue;  // noise over noise, see above
    const Tensor expected = golden_.read("adamw/weights/" + param.name);
    const double limit = options_.compute == DType::f64 ? 2e-6 : 2e-3;
    EXPECT_LE(test::relative_difference(param.master, expected.view()), limit) << param.name;
  }
}

TEST_P(GoldenModel, TouchesExactlyThePlannedMemory) {
  ops::begin_step(*ctx_, input_, &state_, sums_.view());
  pass(*stage_, *ctx_, {&state_, sums_.view()});
  ops::add_norm_squared(*ctx_, presence_->gradients().sums().data, sums_.view());
  std::array<ops::StepResult, ops::kResultRing> results{};
  ops::finalize_step(*ctx_, adamw_->finalize_constants(), sums_.view(), &state_, results.data());
  adamw_->update(*ctx_, &state_, presence_->gradients().sums(), group().all());

  const model::MemoryPlan used = arenas_->used();
  EXPECT_EQ(arenas_->parameters.highest_touched(), plan_.parameters);
  EXPECT_EQ(arenas_->optimizer.highest_touched(), plan_.optimizer);
  EXPECT_EQ(arenas_->activations.highest_touched(), plan_.activations);
  EXPECT_EQ(arenas_->scratch.highest_touched(), plan_.scratch);
  EXPECT_EQ(used.total(), plan_.total());
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* file : {"gpt2", "llama", "postnorm_sinusoidal_relu", "none_relu_squared",
                           "geglu_rmsnorm", "silu_layernorm", "gelu_layernorm"}) {
    for (const DType compute : {DType::f64, DType::f32}) {
      out.push_back({file, compute, model::AttentionPath::fused});
      out.push_back({file, compute, model::AttentionPath::reference});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenModel, testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace hyperslab
