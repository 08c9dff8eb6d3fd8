// SPDX-License-Identifier: Apache-2.0
// Blocks of drawn lists in f64, for tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/nn/attention.hpp"
#include "hyperslab/nn/block.hpp"
#include "hyperslab/nn/experts.hpp"
#include "hyperslab/nn/mlp.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "support/part_of.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

using namespace nn;
using ops::NormKind;

constexpr Dim kSamples = 2;
constexpr Dim kTokens = 8;
constexpr Dim kStreamWidth = 8;
inline const Shape kStream = {kSamples, kTokens, kStreamWidth};

inline BlockConfig small_config() {
  BlockConfig config;
  config.width = kStreamWidth;
  config.heads = {4, 2, 4};
  config.ffn_width = 8;
  config.init.std = 0.5F;
  config.residual_init.std = 0.5F;
  config.experts = {.count = 4, .active = 2, .width = 8, .shared = 1, .balance_weight = 0};
  config.keep_probabilities = true;  // so that dropout acts on them, too
  config.layers = 2;
  config.seed = 11;
  return config;
}

/// The small block with dropout, stochastic depth, activations and recomputation in turn.
inline BlockConfig drawn_config(int i) {
  BlockConfig config = small_config();
  config.dropout = i % 3 == 1 ? 0.3F : 0;
  config.drop_path = i % 3 == 2 ? 0.3F : 0;
  config.activation = i % 2 == 0 ? ops::Activation::gelu_tanh : ops::Activation::swiglu;
  config.experts.normalize = i % 3 != 0;
  config.experts.shared = i % 2;
  config.experts.score = i % 5 < 3 ? ops::RouterScore::softmax : ops::RouterScore::sigmoid;
  config.experts.scale = i % 4 == 0 ? 2 : 1;
  if (i % 6 == 4) config.experts.groups = 2;
  config.experts.balance_weight = i % 4 == 1 ? 0.7 : 0;
  config.experts.z_weight = i % 4 == 2 ? 0.3 : 0;
  config.experts.balance_samples = i % 8 == 5 ? kSamples : 1;
  if (i % 4 >= 2) config.adapter = {.rank = 2, .alpha = 3};
  config.recompute = i % 4 == 3 ? Recompute::selective : Recompute::none;
  return config;
}

/// A block in f64 with its memory, random weights and one microbatch, on a rank of a tensor group.
class BlockHarness {
 public:
  /// `documents`: samples hold several, whose tokens do not see each other.
  BlockHarness(const BlockConfig& config, const BlockList& list, bool documents = false)
      : experts_(config.experts),
        stream_(config.group.stream_shape(kSamples, kTokens, kStreamWidth)),
        block_(store_, "blocks.1", config, 1, list) {
    const Dim values = stream_[0] * stream_[1] * stream_[2];
    const std::vector<double> x = to_doubles(random_tensor(DType::f64, kStream, 3).view());
    const auto begin = x.begin() + (config.group.cuts_rows() ? config.group.rank() * values : 0);
    x_ = tensor_of(DType::f64, stream_, std::vector<double>(begin, begin + values));
    residual_ = Tensor(Device::cpu, DType::f64, stream_);
    store_.lay_out(1 << 20);
    presence_.allocate(store_, {parameters_, host_, &gradients_},
                       {DType::f64, DType::f64, DType::f64});
    for (const param::Param& param : store_.params()) {
      const std::uint64_t seed = std::hash<std::string>()(param.name) % 1000;
      const std::vector<double> whole =
          to_doubles(random_tensor(DType::f64, param.global_shape, seed).view());
      std::vector<double> part = part_of(whole, param.global_shape, param.part);
      for (double& value : part) value *= 0.3;  // small curvature, for finite differences
      std::memcpy(param.value.raw(), part.data(), param.value.bytes());
    }
    const ActivationSpec spec = {kSamples, kTokens, DType::f64, DType::f64};
    scratch_ = plan_scratch(activations_, list, config, spec, true);
    slot_ = block_.plan(activations_, scratch_, spec, true, "block");
    state_.input.inverse_samples = 1.0F / static_cast<float>(kSamples);
    batch_ = {.sample_position = positions_.view(),
              .state = &state_,
              .dropout = true,
              .sums = sums_.view(),
              .loads = loads_.view()};
    if (documents) batch_.first_keys = first_keys_.view();
  }
  [[nodiscard]] const param::ParamStore& store() const { return store_; }
  View input() { return x_.view(); }
  /// Routers' losses of the newest forward(), without those of a repeated one.
  [[nodiscard]] double router_losses() const {
    const auto* sums = sums_.view().data<double>();
    return (experts_.balance_weight * sums[ops::kSumBalance] +
            experts_.z_weight * sums[ops::kSumRouterZ]) /
           static_cast<double>(kSamples);
  }

  /// The stream that leaves, as one view.
  Tensor forward(Context& ctx, bool repeated = false) {
    std::memcpy(residual_.view().raw(), x_.view().raw(), x_.view().bytes());
    if (!repeated) std::memset(sums_.view().raw(), 0, sums_.view().bytes());
    const ResidualStream out = block_.forward(
        ctx, {residual_.view(), {}},
        {.rope = {}, .batch = batch_, .scratch = scratch_, .repeated = repeated}, slot_);
    Tensor sum(Device::cpu, DType::f64, stream_);
    if (!out.residual) return sum;  // a repeated pass that ended early
    const std::vector<double> residual = to_doubles(out.residual);
    const std::vector<double> delta =
        out.delta ? to_doubles(out.delta) : std::vector<double>(residual.size());
    for (std::size_t i = 0; i < residual.size(); ++i) {
      sum.view().data<double>()[i] = residual[i] + delta[i];
    }
    return sum;
  }
  /// Gradients of <weights, forward()>. Returns that of the input.
  Tensor backward(Context& ctx, CView weights, BackwardPart part = BackwardPart::both,
                  Accumulate accumulate = Accumulate::no) {
    Tensor d(Device::cpu, DType::f64, stream_);
    std::memcpy(d.view().raw(), weights.raw(), weights.bytes());
    block_.backward(ctx, {{}, batch_, scratch_, accumulate, part}, slot_, d.view());
    return d;
  }

  /// The stream that leaves, token after token as in generation, on one rank.
  Tensor forward_by_tokens(Context& ctx) {
    constexpr Dim kPageTokens = 8;
    static_assert(kTokens <= kPageTokens);
    block_.plan_texts(activations_, {kSamples, kTokens, kSamples, kPageTokens}, DType::f64,
                      "texts");
    Block::Slot slot = block_.for_tokens(slot_, {kSamples, 1});
    const Scratch scratch = scratch_.for_tokens({kSamples, 1});
    Tensor all(Device::cpu, DType::f64, stream_);
    for (Dim token = 0; token < kTokens; ++token) {
      Tensor x(Device::cpu, DType::f64, {kSamples, 1, kStreamWidth});
      const auto row = [&](View of, Dim b) {
        return of.data<double>() + (b * kTokens + token) * kStreamWidth;
      };
      double* in = x.view().data<double>();
      for (Dim b = 0; b < kSamples; ++b) {
        std::copy_n(row(x_.view(), b), kStreamWidth, in + b * kStreamWidth);
      }
      const ResidualStream out = block_.forward(
          ctx, {x.view(), {}},
          {.rope = {}, .batch = {}, .scratch = scratch, .texts = TextPass{token}}, slot);
      for (Dim b = 0; b < kSamples; ++b) {
        for (Dim c = 0; c < kStreamWidth; ++c) {
          const Dim i = b * kStreamWidth + c;
          row(all.view(), b)[c] =
              out.residual.data<double>()[i] + (out.delta ? out.delta.data<double>()[i] : 0);
        }
      }
    }
    return all;
  }

 private:
  static param::ParamStore new_store() {
    param::ParamStore store;
    store.begin_unit();
    return store;
  }
  ExpertsConfig experts_;
  Shape stream_;
  param::ParamStore store_ = new_store();
  Arena host_{"host"};
  Arena parameters_{"parameters", Device::cpu, 1 << 20};
  Arena gradients_{"gradients", Device::cpu, 1 << 20};
  Arena activations_{"activations", Device::cpu, 1 << 20};
  sharding::Presence presence_;
  Block block_;
  Scratch scratch_;
  Block::Slot slot_;
  Tensor x_;
  Tensor residual_;
  Tensor positions_ = tensor_of(DType::i64, {kSamples}, {0, 1});
  Tensor first_keys_ =
      tensor_of(DType::i32, {kSamples, kTokens}, {0, 0, 2, 2, 2, 2, 2, 7, 0, 0, 0, 0, 0, 5, 5, 5});
  ops::StepState state_;
  Tensor sums_ = filled_tensor(DType::f64, {ops::kSumCount}, 0);
  Tensor loads_ = filled_tensor(DType::f64, {2, 4}, 0);
  BatchInfo batch_;
};

/// A list of up to four branches in any order, with any norms.
inline BlockList drawn_list(std::mt19937& draw) {
  const auto one_of = [&](int count) {
    return static_cast<int>(draw() % static_cast<unsigned>(count));
  };
  const auto norm = [&] {
    constexpr std::array kKinds = {NormKind::none, NormKind::layernorm, NormKind::rmsnorm};
    return kKinds.at(static_cast<std::size_t>(one_of(3)));
  };
  BlockList list(static_cast<std::size_t>(one_of(5)));
  for (std::size_t i = 0; i < list.size(); ++i) {
    BranchSpec& branch = list[i];
    constexpr std::array kSublayers = {&kAttention, &kMlp, &kExperts};
    branch.sublayer = kSublayers.at(static_cast<std::size_t>(one_of(3)));
    branch.norm = norm();
    branch.with_next = i + 1 < list.size() && one_of(3) == 0;
    if (branch.with_next || (i > 0 && list[i - 1].with_next)) continue;
    branch.output_norm = norm();
    branch.sum_norm = norm();
  }
  return list;
}

inline std::string text_of(const BlockList& list) {
  std::string text;
  for (const BranchSpec& branch : list) {
    for (const NormKind kind : {branch.norm, branch.output_norm, branch.sum_norm}) {
      text += std::to_string(static_cast<int>(kind));
    }
    text += std::string(branch.sublayer->name) + (branch.with_next ? "+ " : " ");
  }
  return text;
}

}  // namespace hyperslab::test
