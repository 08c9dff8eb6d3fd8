// SPDX-License-Identifier: Apache-2.0
// Losses and gradients of whole models on a GPU against the same models on the CPU, in every
// precision, for all families and every choice that a deck has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>

#include "gpu/model_run.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/parity/parity.hpp"

namespace hyperslab {
namespace {

using test::Overrides;
using test::world;

// Two microbatches a step. The first step runs eagerly, the second is captured, the others replay.
constexpr const char* kDeck = R"(
run: {name: model, seed: 5}
model: {family: gpt2, layers: 2, width: 64, heads: 4, vocabulary: 211, context: 72, init_std: 0.06}
data: {train: [synthetic]}
optimizer: {lr: 1.0e-3, clip_norm: 1.0}
schedule: {name: constant}
train: {steps: 4, global_batch: 8, microbatch: 4}
)";
constexpr std::int64_t kSteps = 4;
constexpr double kZeroShare = 1e-2;
constexpr double kRelu = 0.15;
constexpr const char* kFakeInt4 = "quantization.weights=int4";
constexpr const char* kChosenExperts = "experts.active=2";

struct Model {
  const char* name;
  Overrides overrides;
  friend std::ostream& operator<<(std::ostream& out, const Model& model) {
    for (const std::string& set : model.overrides) out << set << " ";
    return out;
  }
};

struct Precision {
  const char* name;
  DType compute;
  parity::ParityTolerance tolerance;
};
// Rounding of both devices in fp32, else that of the precision.
const std::vector<Precision> kPrecisions = {{"fp32", DType::f32, {1e-5, 1e-5, 1e-5}},
                                            {"tf32", DType::f32, {1e-2, 1e-3, 1e-3}},
                                            {"bf16", DType::bf16, {6e-2, 5e-3, 5e-3}},
                                            {"fp16", DType::f16, {1e-2, 1e-3, 1e-3}}};

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

/// Without rotation a key's bias moves all scores of a query alike, so that its gradient is
/// rounding alone: held against those of the other biases and left out.
void drop_key_biases(parity::LayoutTrace& trace, const std::string& what) {
  double most = 0;
  double keys = 0;
  std::erase_if(trace.gradients, [&](const auto& item) {
    const auto& [name, values] = item;
    const bool is_key = name.ends_with("attention.key.bias");
    double& kind = is_key ? keys : most;
    if (name.ends_with(".bias")) kind = std::max(kind, largest(values));
    return is_key;
  });
  EXPECT_LE(keys, kZeroShare * most) << what;
}

class GpuModel : public test::GpuTest, public testing::WithParamInterface<Model> {
 protected:
  [[nodiscard]] static train::Config read(const Overrides& more) {
    using test::operator+;
    return test::read_model(kDeck, GetParam().overrides + more);
  }
  [[nodiscard]] static bool asks(const std::string& override) {
    return std::ranges::find(GetParam().overrides, override) != GetParam().overrides.end();
  }
  /// Relu's derivative jumps where rounding changes a sign.
  [[nodiscard]] static parity::ParityTolerance tolerance(const Precision& precision) {
    parity::ParityTolerance out = precision.tolerance;
    const bool rounds = std::string(precision.name) != "fp32";
    if (rounds && asks("model.activation=relu")) out.gradient = kRelu;
    return out;
  }
  /// The model on the CPU with the attention that a GPU takes in a precision: only the reference
  /// path drops probabilities.
  const parity::LayoutTrace& on_cpu(DType compute) {
    const Overrides here = {"run.device=cpu", "precision.compute=fp32", "model.attention=auto"};
    train::Config config = read(here);
    const bool fused = !asks("model.attention=reference") &&
                       ops::has_fused_attention_on_gpu(compute, config.model.head_width());
    config.model.attention = fused ? model::AttentionPath::fused : model::AttentionPath::reference;
    const auto [at, is_new] = traces_.try_emplace(fused);
    if (!is_new) return at->second;
    at->second = parity::trace_layout(world(), config, kSteps);
    if (config.model.position != model::Position::rope) drop_key_biases(at->second, "on the CPU");
    return at->second;
  }

 private:
  std::map<bool, parity::LayoutTrace> traces_;
};

TEST_P(GpuModel, GradientsAreThoseOfTheCpu) {
  for (const Precision& precision : kPrecisions) {
    if (precision.compute == DType::f32 && asks("model.attention=cudnn")) continue;
    // Values of 16 bits lie on other sides of the middles between two codes than those of f32.
    if (precision.compute != DType::f32 && asks(kFakeInt4)) continue;
    // Nor have rounded tokens the same experts where two score nearly alike.
    if (std::string(precision.name) != "fp32" && asks(kChosenExperts)) continue;
    const train::Config config =
        read({"run.device=cuda", std::string("precision.compute=") + precision.name});
    const parity::LayoutTrace& expected = on_cpu(precision.compute);

    parity::LayoutTrace found = parity::trace_layout(world(), config, kSteps);
    if (config.model.position != model::Position::rope) drop_key_biases(found, precision.name);

    const auto report = parity::compare(expected, found, tolerance(precision));
    ASSERT_FALSE(report.rows.empty());
    const parity::ParityReport::Row& worst = report.rows.front();
    std::printf("%s in %s: gradients %.1e (%s), losses %.1e\n", GetParam().name, precision.name,
                worst.difference, worst.tensor.c_str(), report.loss_difference);
    EXPECT_TRUE(report.agrees) << precision.name << ": " << worst.tensor << " " << worst.difference
                               << ", loss " << report.loss_difference << " at step "
                               << report.worst_step;
    if (precision.compute != DType::f32) {  // and it was not the CPU that computed
      EXPECT_GT(worst.difference, 1e-5) << precision.name;
    }
  }
}

const std::vector<Model> kGpt2 = {
    {"gpt2", {}},
    {"whole_batch", {"train.microbatch=8"}},
    {"adapters", {"adapter.rank=4", "adapter.alpha=8"}},
    {"adapters_dropout", {"adapter.rank=4", "adapter.dropout=0.2"}},
    {"adapters_nf4", {"adapter.rank=4", "model.frozen_format=nf4"}},
    {"adapters_int8", {"adapter.rank=4", "model.frozen_format=int8"}},
    {"fake_int4", {kFakeInt4}},
    {"sinusoidal", {"model.position=sinusoidal"}},
    {"rope", {"model.position=rope"}},
    {"no_position", {"model.position=none"}},
    {"rmsnorm", {"model.norm=rmsnorm"}},
    {"no_norm", {"model.norm=none"}},
    {"post_layernorm", {"model.norm_place=post"}},
    {"post_rmsnorm", {"model.norm_place=post", "model.norm=rmsnorm"}},
    {"gelu", {"model.activation=gelu"}},
    {"relu",
     {"model.activation=relu", "model.position=rope", "train.global_batch=32",
      "train.microbatch=16"}},
    {"silu", {"model.activation=silu", "model.bias=false"}},
    {"relu_squared", {"model.activation=relu_squared"}},
    {"swiglu", {"model.activation=swiglu"}},
    {"geglu", {"model.activation=geglu"}},
    {"no_bias", {"model.bias=false"}},
    {"untied", {"model.tie_embeddings=false"}},
    {"mup", {"model.mup_base_width=24"}},
    {"grouped_query", {"model.kv_heads=2"}},
    {"one_key_value_head", {"model.kv_heads=1", "model.attention=reference"}},
    {"dropout", {"model.dropout=0.1"}},
    {"dropout_reference", {"model.dropout=0.2", "model.attention=reference"}},
    {"reference", {"model.attention=reference"}},
    {"cudnn", {"model.attention=cudnn"}},
    {"head_width_8", {"model.heads=8", "model.kv_heads=4"}},
    {"head_width_15", {"model.width=60"}},
    {"head_width_80", {"model.width=160", "model.heads=2"}},
    {"head_width_256", {"model.width=256", "model.heads=1"}},
    {"head_width_288", {"model.width=288", "model.heads=1", "model.init_std=0.04"}},
};
/// A model of four experts a layer with all losses of routers.
Overrides experts(const Overrides& more) {
  using test::operator+;
  const Overrides all = {"model.family=llama", "experts.count=4", "experts.width=96",
                         "experts.balance_weight=0.3", "experts.z_weight=0.1"};
  return all + more;
}

const std::vector<Model> kLlama = {
    {"llama", {"model.family=llama"}},
    {"llama_grouped_query", {"model.family=llama", "model.kv_heads=2", "model.rope_theta=500000"}},
    {"llama_one_key_value_head", {"model.family=llama", "model.kv_heads=1"}},
    {"llama_tied", {"model.family=llama", "model.tie_embeddings=true"}},
    {"llama_bias", {"model.family=llama", "model.bias=true"}},
    {"llama_learned", {"model.family=llama", "model.position=learned"}},
    {"llama_layernorm", {"model.family=llama", "model.norm=layernorm"}},
    {"llama_post", {"model.family=llama", "model.norm_place=post"}},
    {"llama_geglu_dropout", {"model.family=llama", "model.activation=geglu", "model.dropout=0.1"}},
    {"llama_gelu", {"model.family=llama", "model.activation=gelu_tanh", "model.kv_heads=2"}},
    {"llama_today",
     {"model.family=llama", "model.qk_norm=head", "model.qkv_bias=true", "model.head_width=24",
      "model.kv_heads=2", "model.rotary_fraction=0.5", "model.rope_scaling=yarn",
      "model.rope_factor=4", "model.rope_original_context=18"}},
    {"llama_llama3",
     {"model.family=llama", "model.rope_scaling=llama3", "model.rope_factor=8",
      "model.rope_original_context=16", "model.rope_low_factor=1", "model.rope_high_factor=4"}},
    {"llama_gemma2",
     {"model.family=llama", "model.norm_place=sandwich", "model.activation=geglu_tanh",
      "model.window=20", "model.window_full_every=2", "model.attention_softcap=5",
      "model.logit_softcap=3", "train.z_loss=0.01", "model.attention_scale=0.3", "model.kv_heads=2",
      "model.embedding_scale=8"}},
    {"llama_mup",
     {"model.family=llama", "model.mup_base_width=24", "model.mup_base_head_width=6",
      "model.kv_heads=2", "model.logit_softcap=3", "train.z_loss=0.01"}},
    {"llama_sinks",
     {"model.family=llama", "model.attention_sinks=true", "model.window=20",
      "model.window_full_every=2", "model.kv_heads=2"}},
    {"llama_sinks_reference",
     {"model.family=llama", "model.attention_sinks=true", "model.attention=reference",
      "model.dropout=0.1"}},
    {"llama_window",
     {"model.family=llama", "model.window=17", "model.window_first_layer=1",
      "model.rope_local_theta=300", "model.norm_place=post_sublayer"}},
    {"llama_window_reference",
     {"model.family=llama", "model.window=17", "model.attention=reference",
      "model.attention_softcap=4"}},
    {"llama_documents",
     {"model.family=llama", "data.documents=masked", "data.end_token=3", "model.kv_heads=2"}},
    {"gpt2_documents", {"model.family=gpt2", "data.documents=masked", "data.end_token=3"}},
    {"sinusoidal_documents",
     {"model.position=sinusoidal", "data.documents=masked", "data.end_token=3"}},
    {"llama_documents_reference",
     {"model.family=llama", "data.documents=masked", "data.end_token=3", "model.window=17",
      "model.attention=reference"}},
    {"llama_olmo2",
     {"model.family=llama", "model.qk_norm=width", "model.norm_place=post_sublayer",
      "model.kv_heads=2"}},
    {"llama_parallel",
     {"model.family=llama", "model.parallel_block=true", "model.norm=layernorm", "model.bias=true",
      "model.activation=gelu", "model.rotary_fraction=0.5"}},
    {"llama_muon", {"model.family=llama", "optimizer.name=muon"}},
    {"llama_all_experts", experts({"experts.active=4", "experts.scale=2"})},
    {"llama_experts", experts({kChosenExperts, "experts.shared=1", "experts.normalize=false"})},
    {"llama_experts_bias", experts({kChosenExperts, "experts.score=sigmoid", "experts.groups=2",
                                    "experts.bias_rate=0.01", "experts.first_dense=1"})},
    {"llama_experts_batch", experts({kChosenExperts, "experts.balance=batch",
                                     "experts.balance_samples=2", "memory.recompute=selective"})},
    {"llama_reference", {"model.family=llama", "model.attention=reference", "model.kv_heads=2"}},
    {"llama_cudnn", {"model.family=llama", "model.attention=cudnn", "model.kv_heads=2"}},
    {"llama_head_width_64", {"model.family=llama", "model.width=128", "model.heads=2"}},
    {"llama_head_width_128",
     {"model.family=llama", "model.width=256", "model.heads=2", "model.kv_heads=1"}},
};

/// A vision transformer of 17 tokens with more choices.
Overrides images(const Overrides& more = {}) {
  using test::operator+;
  const Overrides all = {"model.family=vit",   "model.image=32",      "model.patch=8",
                         "model.classes=10",   "model.vocabulary=10", "model.context=17",
                         "model.norm_eps=1e-6"};
  return all + more;
}
const std::vector<Model> kVit = {
    {"vit", images()},
    {"vit_mean_sincos2d",
     images({"model.pooling=mean", "model.position=sincos2d", "model.context=16"})},
    {"vit_mup", images({"model.mup_base_width=24", "model.pooling=mean", "model.context=16"})},
    {"vit_reference", images({"model.attention=reference", "model.dropout=0.1"})},
    {"vit_recipe",
     images({"model.unbiased_qkv=true", "model.init=xavier", "model.position_std=1",
             "model.drop_path=0.2", "model.drop_path_rule=constant", "model.label_smoothing=0.1",
             "augment.mixup=1", "augment.cutmix=1", "augment.mix=0.5",
             "augment.policy=autoaugment-imagenet", "augment.policy_fill=128", "augment.erase=0.25",
             "augment.erase_area=[0.02, 0.4]", "optimizer.decay_norms_and_biases=true"})},
    {"vit_grey_bicubic", images({"model.channels=1", "augment.interpolation=bicubic"})},
};

std::string name_of_model(const testing::TestParamInfo<Model>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Gpt2, GpuModel, testing::ValuesIn(kGpt2), name_of_model);
INSTANTIATE_TEST_SUITE_P(Vit, GpuModel, testing::ValuesIn(kVit), name_of_model);
INSTANTIATE_TEST_SUITE_P(Llama, GpuModel, testing::ValuesIn(kLlama), name_of_model);

}  // namespace
}  // namespace hyperslab
