// SPDX-License-Identifier: Apache-2.0
// The sizes of a model's blocks, and the numbers that follow: parameters, multiplications, FLOPs.
#include <cmath>

#include "hyperslab/nn/block.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {
namespace {

/// Matrices that add to the residual stream may begin smaller.
nn::MatrixInit residual_init(const ModelSpec& spec) {
  nn::MatrixInit init = spec.matrix_init();
  if (spec.scale_residual_init) init.std /= std::sqrt(2.0F * static_cast<float>(spec.layers));
  return init;
}

/// Numbers of the block of a layer, for sequences of T tokens.
nn::SublayerCounts counts_of_block(const ModelSpec& spec, Dim layer, Dim T) {
  ops::AttentionMask mask;
  if (spec.is_of_images())
    mask.kind = ops::AttentionMask::Kind::none;
  else
    mask.window = spec.scores.window_of(layer);
  return nn::count_block(block_sizes(spec, mask), layer, T);
}

/// Parameters of a model's blocks and its final norm.
std::int64_t parameters_of_layers(const ModelSpec& spec) {
  std::int64_t sum =
      spec.has_final_norm() ? nn::Norm::parameters({spec.norm, spec.width, 0, spec.bias}) : 0;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    const nn::SublayerCounts block = counts_of_block(spec, layer, spec.context);
    sum += block.matrices + block.idle + block.vectors;
  }
  return sum;
}

/// `pairs`: multiplications a token with other tokens, of all layers.
double flops_with_pairs(const ModelSpec& spec, double pairs) {
  return 6.0 * (static_cast<double>(matmul_parameter_count(spec)) + pairs);
}

std::int64_t patch_matrix(const ModelSpec& spec) { return spec.width * spec.image.patch_values(); }

std::int64_t image_parameter_count(const ModelSpec& spec) {
  const std::int64_t C = spec.width;
  const std::int64_t class_token = spec.image.pooling == Pooling::token ? C : 0;
  const std::int64_t positions = spec.position == Position::learned ? spec.context * C : 0;
  return patch_matrix(spec) + C + class_token + positions + parameters_of_layers(spec) +
         spec.image.classes * (C + 1);
}

}  // namespace

nn::BlockConfig block_sizes(const ModelSpec& spec, ops::AttentionMask mask) {
  nn::BlockConfig config;
  config.width = spec.width;
  config.heads = {spec.heads, spec.kv_heads, spec.head_width()};
  config.scores.mask = mask;
  config.scores.scale = spec.scale_of_scores();
  config.scores.softcap = spec.scores.softcap;
  config.ffn_width = spec.ffn_width;
  config.experts = spec.experts;
  config.activation = spec.activation;
  const bool after_output = spec.norm_place == NormPlace::post_sublayer;
  config.norm = after_output ? ops::NormKind::none : spec.norm;
  if (after_output || spec.norm_place == NormPlace::sandwich) config.output_norm = spec.norm;
  config.pre_norm = spec.norm_place != NormPlace::post;
  config.parallel = spec.parallel_block;
  config.norm_eps = static_cast<float>(spec.norm_eps);
  config.bias = spec.bias;
  config.qkv_bias = spec.has_qkv_bias();
  config.qk_norm = spec.qk_norm;
  config.rope = spec.position == Position::rope;
  config.sinks = spec.scores.sinks;
  config.dropout = static_cast<float>(spec.dropout);
  config.drop_path = static_cast<float>(spec.drop_path);
  config.drop_path_rule = spec.drop_path_rule;
  config.layers = static_cast<int>(spec.layers);
  config.init = spec.matrix_init();
  config.residual_init = residual_init(spec);
  return config;
}

std::int64_t parameter_count(const ModelSpec& spec) {
  if (spec.is_of_images()) return image_parameter_count(spec);
  const std::int64_t table = spec.vocabulary * spec.width;
  const std::int64_t tables = spec.tie_embeddings ? table : 2 * table;
  const std::int64_t positions = spec.position == Position::learned ? spec.context * spec.width : 0;
  return parameters_of_layers(spec) + tables + positions;
}

std::int64_t matmul_parameter_count(const ModelSpec& spec) {
  std::int64_t blocks = 0;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    blocks += counts_of_block(spec, layer, spec.context).matrices;
  }
  if (spec.is_of_images()) return patch_matrix(spec) + blocks + spec.image.classes * spec.width;
  return blocks + spec.vocabulary * spec.width;
}

double embedding_cost(const ModelSpec& spec) {
  if (!spec.is_of_images()) return 0;
  return static_cast<double>(patch_matrix(spec) * spec.image.patches()) /
         static_cast<double>(spec.context);
}

double block_cost(const ModelSpec& spec, Dim layer) {
  const nn::SublayerCounts block = counts_of_block(spec, layer, spec.context);
  return static_cast<double>(block.matrices) + block.pairs;
}

double head_cost(const ModelSpec& spec) {
  if (spec.is_of_images()) {
    return static_cast<double>(spec.image.classes * spec.width) / static_cast<double>(spec.context);
  }
  return static_cast<double>(spec.vocabulary * spec.width);
}

double flops_per_token(const ModelSpec& spec, Dim T, bool causal) {
  if (spec.is_of_images()) {
    return 6.0 * (embedding_cost(spec) + static_cast<double>(spec.layers) * block_cost(spec, 0) +
                  head_cost(spec));
  }
  if (causal) return flops_per_token(spec, T, KeyShares());
  const ops::AttentionMask all = {.kind = ops::AttentionMask::Kind::none};
  return flops_with_pairs(
      spec, static_cast<double>(spec.layers) * nn::count_block(block_sizes(spec, all), 0, T).pairs);
}

double flops_per_token(const ModelSpec& spec, Dim T, const KeyShares& documents) {
  if (spec.is_of_images()) return flops_per_token(spec, T, true);
  double pairs = 0;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    pairs += counts_of_block(spec, layer, T).pairs *
             (spec.scores.window_of(layer) > 0 ? documents.windowed : documents.all);
  }
  return flops_with_pairs(spec, pairs);
}

}  // namespace hyperslab::model
