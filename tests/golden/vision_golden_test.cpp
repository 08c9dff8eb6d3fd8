// SPDX-License-Identifier: Apache-2.0
// A vision transformer against an independent float64 NumPy model (vision.py): activations, loss
// and gradients, in f64 and f32.
#include <cstring>
#include <memory>
#include <optional>

#include "golden_file.hpp"
#include "hyperslab/model/stage.hpp"
#include "hyperslab/model/vision_transformer.hpp"
#include "hyperslab/ops/loss.hpp"
#include "hyperslab/ops/optimizer.hpp"

namespace hyperslab {
namespace {

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

model::ModelSpec spec_of(const test::Golden& golden) {
  model::ModelSpec spec = model::preset(model::Family::vit);
  spec.layers = golden.dim("layers");
  spec.width = golden.dim("width");
  spec.heads = spec.kv_heads = golden.dim("heads");
  spec.ffn_width = golden.dim("ffn_width");
  spec.image = {golden.dim("image"), golden.dim("patch"), golden.dim("channels"),
                golden.dim("classes"),
                golden.text("pooling") == "token" ? model::Pooling::token : model::Pooling::mean};
  spec.vocabulary = spec.image.classes;
  spec.context = spec.image.tokens();
  spec.position =
      golden.text("position") == "learned" ? model::Position::learned : model::Position::sincos2d;
  spec.norm_eps = golden.number("norm_eps");
  spec.label_smoothing = golden.number("label_smoothing");
  return spec;
}

void assign(const Tensor& from, View to) {
  const std::vector<double> values = test::to_doubles(from.view());
  ASSERT_EQ(static_cast<Dim>(values.size()), to.numel());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (to.dtype() == DType::f64)
      to.data<double>()[i] = values[i];
    else
      to.data<float>()[i] = static_cast<float>(values[i]);
  }
}

/// A stage that holds the golden weights and the golden batch.
class GoldenVision : public testing::TestWithParam<Case> {
 protected:
  GoldenVision() : golden_(GetParam().file), spec_(spec_of(golden_)) {
    spec_.attention = GetParam().attention;
    options_.B = golden_.dim("batch");
    options_.T = spec_.context;
    options_.compute = GetParam().compute;
    model::Arenas measuring = model::Arenas::measuring();
    Context meta(Device::meta);
    {
      sharding::Presence presence;
      model::Stage stage(model::make_architecture(spec_, options_), options_, measuring, presence);
      forward(stage, meta, {nullptr, View(nullptr, statistics(), Device::meta, {ops::kSumCount})});
      backward(stage, meta, {nullptr, View(nullptr, statistics(), Device::meta, {ops::kSumCount})});
    }
    arenas_.emplace(model::Arenas::real(Device::cpu, measuring.used(), true));
    ctx_ = std::make_unique<Context>(Device::cpu, meta.workspace_high_water());
    presence_.emplace();
    stage_ = std::make_unique<model::Stage>(model::make_architecture(spec_, options_), options_,
                                            *arenas_, *presence_);
    stage_->initialize(*ctx_);
    sums_ = Tensor(Device::cpu, statistics(), {ops::kSumCount});
    load();
  }

  [[nodiscard]] DType statistics() const {
    return options_.compute == DType::f64 ? DType::f64 : DType::f32;
  }
  void load() {
    for (const param::Param& param : stage_->params().params()) {
      assign(golden_.read("weights/" + param.name), param.master);
    }
    const Batch& batch = stage_->batch({});
    assign(golden_.read("patches"), batch.patches);
    assign(golden_.read("label_weights"), batch.label_weights);
    const Tensor labels = golden_.read("labels", DType::i32);
    std::memcpy(batch.labels.raw(), labels.view().raw(), labels.view().bytes());
    const auto positions = batch.sample_position.span<std::int64_t>();
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
    input_.step = 1;
    input_.inverse_weights = static_cast<float>(1.0 / count("counted_images"));
  }
  static void forward(model::Stage& stage, Context& ctx, const model::StepViews& step) {
    for (int unit = 0; unit < stage.units(); ++unit) {
      stage.forward(ctx, {}, unit, model::Mode::train, step, nn::Accumulate::no);
    }
  }
  static void backward(model::Stage& stage, Context& ctx, const model::StepViews& step) {
    for (int unit = stage.units() - 1; unit >= 0; --unit) {
      stage.backward(ctx, {}, unit, step, nn::Accumulate::no);
    }
  }
  [[nodiscard]] double count(const std::string& name) const {
    return golden_.read(name).view().data<double>()[0];
  }
  [[nodiscard]] double sum(int index) const {
    return test::to_doubles(sums_.view())[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] double tolerance() const { return test::golden_tolerance(options_.compute); }

  test::Golden golden_;
  model::ModelSpec spec_;
  model::StageOptions options_;
  std::optional<model::Arenas> arenas_;
  std::unique_ptr<Context> ctx_;
  std::optional<sharding::Presence> presence_;
  std::unique_ptr<model::Stage> stage_;
  Tensor sums_;
  ops::StepInput input_;
  ops::StepState state_;
};

TEST_P(GoldenVision, ActivationsLossAndGradients) {
  const model::StepViews step = {&state_, sums_.view()};
  ops::begin_step(*ctx_, input_, &state_, sums_.view());

  forward(*stage_, *ctx_, step);

  EXPECT_EQ(sum(ops::kSumTokens), count("counted_images"));
  EXPECT_EQ(sum(ops::kSumCorrect), count("correct_images"));
  EXPECT_EQ(sum(ops::kSumCorrect5), count("correct5_images"));
  EXPECT_NEAR(sum(ops::kSumLoss) / count("counted_images"), count("loss"),
              count("loss") * tolerance());
  // What the last block adds is summed where rows are pooled, and nowhere kept.
  for (int unit = 0; unit + 2 < stage_->units(); ++unit) {
    const std::string name =
        unit == 0 ? "embedding" : "blocks." + std::to_string(unit - 1) + ".output";
    const Tensor expected = golden_.read("activations/" + name);
    EXPECT_LE(test::relative_difference(stage_->activation({}, unit), expected.view()), tolerance())
        << name;
  }

  backward(*stage_, *ctx_, step);

  for (const param::Param& param : stage_->params().params()) {
    const Tensor expected = golden_.read("gradients/" + param.name);
    // The key bias has no gradient in theory: softmax does not see what all keys share.
    const double floor = param.name.ends_with("key.bias") ? 1e-2 : 1e-30;
    EXPECT_LE(test::relative_difference(param.gradient, expected.view(), floor), tolerance())
        << param.name;
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* file : {"vit_token", "vit_mean"}) {
    for (const DType compute : {DType::f64, DType::f32}) {
      out.push_back({file, compute, model::AttentionPath::fused});
      out.push_back({file, compute, model::AttentionPath::reference});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenVision, testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace hyperslab
