// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/spec.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/attention.hpp"

namespace hyperslab::model {
namespace {

/// Matrices of one block: query, key, value, output, and the feed-forward network.
std::int64_t block_matrices(const ModelSpec& spec) {
  const std::int64_t C = spec.width;
  const std::int64_t ffn_matrices = ops::is_gated(spec.activation) ? 3 : 2;
  return 2 * C * spec.query_width() + 2 * C * spec.kv_width() + ffn_matrices * C * spec.ffn_width;
}

std::int64_t block_biases(const ModelSpec& spec) {
  const std::int64_t qkv = spec.has_qkv_bias() ? spec.query_width() + 2 * spec.kv_width() : 0;
  if (!spec.bias) return qkv;
  const std::int64_t inner_vectors = ops::is_gated(spec.activation) ? 2 : 1;
  return qkv + 2 * spec.width + inner_vectors * spec.ffn_width;
}

/// Of queries and keys, in a block.
std::int64_t qk_norm_parameters(const ModelSpec& spec) {
  switch (spec.qk_norm) {
    case QkNorm::none: return 0;
    case QkNorm::head: return 2 * spec.head_width();
    case QkNorm::width: return spec.query_width() + spec.kv_width();
  }
  return 0;
}

/// Norms of a block.
std::int64_t norms_of_block(const ModelSpec& spec) {
  return spec.norm_place == NormPlace::sandwich ? 4 : 2;
}

std::int64_t norm_parameters(const ModelSpec& spec) {
  switch (spec.norm) {
    case ops::NormKind::none: return 0;
    case ops::NormKind::rmsnorm: return spec.width;
    case ops::NormKind::layernorm: return spec.bias ? 2 * spec.width : spec.width;
  }
  return 0;
}

double default_scale_of_embeddings(const ModelSpec& spec) {
  const Dim width = spec.mup_base_width > 0 ? spec.mup_base_width : spec.width;
  return spec.position == Position::sinusoidal ? std::sqrt(static_cast<double>(width)) : 1;
}

/// Share of all pairs of T tokens that a layer's attention computes.
double seen_share(const ModelSpec& spec, Dim layer, Dim T) {
  if (spec.is_of_images()) return 1;
  return ops::seen_share({ops::AttentionMask::Kind::causal, spec.scores.window_of(layer)}, T);
}

/// `layers`: how many would compute so many pairs of tokens if each computed all of them.
double flops_with_attention(const ModelSpec& spec, Dim T, double layers) {
  return 6.0 * static_cast<double>(matmul_parameter_count(spec)) +
         12.0 * layers * static_cast<double>(spec.query_width()) * static_cast<double>(T);
}

std::int64_t patch_matrix(const ModelSpec& spec) { return spec.width * spec.image.patch_values(); }

std::int64_t image_parameter_count(const ModelSpec& spec) {
  const std::int64_t C = spec.width;
  const std::int64_t class_token = spec.image.pooling == Pooling::token ? C : 0;
  const std::int64_t positions = spec.position == Position::learned ? spec.context * C : 0;
  const std::int64_t final_norms = spec.has_final_norm() ? 1 : 0;
  const std::int64_t block = block_matrices(spec) + block_biases(spec) + qk_norm_parameters(spec);
  return patch_matrix(spec) + C + class_token + positions + spec.layers * block +
         (norms_of_block(spec) * spec.layers + final_norms) * norm_parameters(spec) +
         spec.image.classes * (C + 1);
}

}  // namespace

ModelSpec preset(Family family) {
  ModelSpec spec;
  spec.family = family;
  if (family == Family::gpt2) return spec;
  if (family == Family::vit) {
    spec.norm_eps = 1e-6;
    spec.activation = ops::Activation::gelu;
    spec.tie_embeddings = false;
    spec.scale_residual_init = false;
    return spec;
  }
  spec.position = Position::rope;
  spec.norm = ops::NormKind::rmsnorm;
  spec.activation = ops::Activation::swiglu;
  spec.bias = false;
  spec.tie_embeddings = false;
  return spec;
}

std::int64_t parameter_count(const ModelSpec& spec) {
  if (spec.is_of_images()) return image_parameter_count(spec);
  const std::int64_t table = spec.vocabulary * spec.width;
  const std::int64_t tables = spec.tie_embeddings ? table : 2 * table;
  const std::int64_t positions = spec.position == Position::learned ? spec.context * spec.width : 0;
  const std::int64_t final_norms = spec.has_final_norm() ? 1 : 0;
  const std::int64_t sinks = spec.scores.sinks ? spec.heads : 0;
  const std::int64_t block =
      block_matrices(spec) + block_biases(spec) + qk_norm_parameters(spec) + sinks;
  return spec.layers * block +
         (norms_of_block(spec) * spec.layers + final_norms) * norm_parameters(spec) + tables +
         positions;
}

std::int64_t matmul_parameter_count(const ModelSpec& spec) {
  if (spec.is_of_images()) {
    return patch_matrix(spec) + spec.layers * block_matrices(spec) +
           spec.image.classes * spec.width;
  }
  return spec.layers * block_matrices(spec) + spec.vocabulary * spec.width;
}

double embedding_cost(const ModelSpec& spec) {
  if (!spec.is_of_images()) return 0;
  return static_cast<double>(patch_matrix(spec) * spec.image.patches()) /
         static_cast<double>(spec.context);
}

double block_cost(const ModelSpec& spec, Dim layer) {
  const double attention = 2 * seen_share(spec, layer, spec.context) *
                           static_cast<double>(spec.query_width() * spec.context);
  return static_cast<double>(block_matrices(spec)) + attention;
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
  return flops_with_attention(spec, T, static_cast<double>(spec.layers));
}

double flops_per_token(const ModelSpec& spec, Dim T, const KeyShares& documents) {
  if (spec.is_of_images()) return flops_per_token(spec, T, true);
  double seen_layers = 0;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    seen_layers += seen_share(spec, layer, T) *
                   (spec.scores.window_of(layer) > 0 ? documents.windowed : documents.all);
  }
  return flops_with_attention(spec, T, seen_layers);
}

double ModelSpec::scale_of_embeddings() const {
  return embedding_scale > 0 ? embedding_scale : default_scale_of_embeddings(*this);
}

param::Parametrization ModelSpec::parametrization() const {
  if (mup_base_width == 0) return {};
  return {static_cast<double>(width) / static_cast<double>(mup_base_width), mup_base_head_width};
}

double ModelSpec::scale_of_scores() const {
  return scores.scale > 0 ? scores.scale : parametrization().attention_scale(head_width());
}

namespace {

std::string number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

using Choices = std::vector<std::pair<const char*, std::string>>;

/// What is not as in a plain model, so that earlier identities stay.
void add_rope(const RopeSpec& rope, Choices& choices) {
  if (rope.fraction != 1) choices.emplace_back("rotary_fraction", number(rope.fraction));
  if (rope.scaling == RopeScaling::none) return;
  choices.emplace_back("rope_scaling", std::string(name_of(rope.scaling)));
  choices.emplace_back("rope_factor", number(rope.factor));
  if (rope.scaling == RopeScaling::linear) return;
  choices.emplace_back("rope_original_context", std::to_string(rope.original_context));
  if (rope.scaling == RopeScaling::llama3) {
    choices.emplace_back("rope_low_factor", number(rope.low_factor));
    choices.emplace_back("rope_high_factor", number(rope.high_factor));
  } else {
    choices.emplace_back("rope_beta_fast", number(rope.beta_fast));
    choices.emplace_back("rope_beta_slow", number(rope.beta_slow));
    choices.emplace_back("rope_attention_factor", number(rope.attention_factor));
  }
}

void add_scores(const ModelSpec& spec, Choices& choices) {
  const AttentionSpec& scores = spec.scores;
  if (scores.window > 0) {
    choices.emplace_back("window", std::to_string(scores.window));
    choices.emplace_back("window_full_every", std::to_string(scores.full_every));
    choices.emplace_back("window_first_layer", std::to_string(scores.first_windowed));
  }
  if (spec.rope_local_theta > 0) {
    choices.emplace_back("rope_local_theta", number(spec.rope_local_theta));
  }
  if (scores.scale > 0) choices.emplace_back("attention_scale", number(scores.scale));
  if (scores.softcap > 0) choices.emplace_back("attention_softcap", number(scores.softcap));
  if (scores.sinks) choices.emplace_back("attention_sinks", "true");
  if (spec.logit_softcap > 0) choices.emplace_back("logit_softcap", number(spec.logit_softcap));
  const param::Parametrization scaled = spec.parametrization();
  if (scaled.logit_factor() != 1) {
    choices.emplace_back("mup_base_width", std::to_string(spec.mup_base_width));
  }
  if (scaled.attention_scale(spec.head_width()) > 0) {
    choices.emplace_back("mup_base_head_width", std::to_string(spec.mup_base_head_width));
  }
}

}  // namespace

namespace {

/// A key whose values identity() stores as numbers, with their names in a deck.
struct Numbered {
  std::string_view key;
  std::vector<std::string_view> names;
};

/// "activation=5" as "activation=swiglu".
std::string readable_choice(const std::string& choice) {
  static const std::vector<Numbered> kNumbered = {
      {"position", {"learned", "sinusoidal", "rope", "none", "sincos2d"}},
      {"norm", {"layernorm", "rmsnorm", "none"}},
      {"norm_place", {"pre", "post", "sandwich", "post_sublayer"}},
      {"activation",
       {"gelu", "gelu_tanh", "relu", "silu", "relu_squared", "swiglu", "geglu", "geglu_tanh"}}};
  const std::size_t equals = std::min(choice.find('='), choice.size());
  const std::string key = choice.substr(0, equals);
  const auto numbered = std::ranges::find(kNumbered, key, &Numbered::key);
  if (numbered == kNumbered.end()) return choice;
  for (std::size_t i = 0; i < numbered->names.size(); ++i) {
    if (choice == key + "=" + std::to_string(i)) return key + "=" + std::string(numbered->names[i]);
  }
  return choice;
}

}  // namespace

std::string identity(const ModelSpec& spec) {
  Choices choices = {
      {"layers", std::to_string(spec.layers)},
      {"width", std::to_string(spec.width)},
      {"heads", std::to_string(spec.heads)},
      {"kv_heads", std::to_string(spec.kv_heads)},
      {"ffn_width", std::to_string(spec.ffn_width)},
      {"vocabulary", std::to_string(spec.vocabulary)},
      {"position", std::to_string(static_cast<int>(spec.position))},
      {"rope_theta", spec.position == Position::rope ? number(spec.rope.theta) : "-"},
      {"norm", std::to_string(static_cast<int>(spec.norm))},
      {"norm_place", std::to_string(static_cast<int>(spec.norm_place))},
      {"norm_eps", spec.norm == ops::NormKind::none ? "-" : number(spec.norm_eps)},
      {"activation", std::to_string(static_cast<int>(spec.activation))},
      {"bias", spec.bias ? "true" : "false"},
      {"tie_embeddings", spec.tie_embeddings ? "true" : "false"}};
  if (spec.scale_of_embeddings() != default_scale_of_embeddings(spec)) {
    choices.emplace_back("embedding_scale", number(spec.embedding_scale));
  }
  if (spec.head_width() * spec.heads != spec.width) {
    choices.emplace_back("head_width", std::to_string(spec.head_width()));
  }
  if (spec.parallel_block) choices.emplace_back("parallel_block", "true");
  if (spec.qk_norm == QkNorm::head) choices.emplace_back("qk_norm", "head");
  if (spec.qk_norm == QkNorm::width) choices.emplace_back("qk_norm", "width");
  if (spec.has_qkv_bias() != spec.bias) {
    choices.emplace_back("qkv_bias", spec.has_qkv_bias() ? "true" : "false");
  }
  if (spec.position == Position::rope) add_rope(spec.rope, choices);
  add_scores(spec, choices);
  if (spec.is_of_images()) {
    choices.emplace_back("image", std::to_string(spec.image.size));
    choices.emplace_back("patch", std::to_string(spec.image.patch));
    choices.emplace_back("channels", std::to_string(spec.image.channels));
    choices.emplace_back("pooling", spec.image.pooling == Pooling::token ? "token" : "mean");
  }
  std::string out;
  for (const auto& [key, value] : choices) {
    if (!out.empty()) out += ' ';
    out.append(key).append("=").append(value);
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> differing_choices(const std::string& a,
                                                                   const std::string& b) {
  const auto words_of = [](const std::string& text) {
    std::istringstream words(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(words), {});
  };
  const std::vector<std::string> ours = words_of(a);
  const std::vector<std::string> theirs = words_of(b);
  const auto with_key_of = [](const std::vector<std::string>& words, const std::string& word) {
    const std::string key = word.substr(0, word.find('=') + 1);
    const auto found = std::ranges::find_if(
        words, [&](const std::string& other) { return other.starts_with(key); });
    return found == words.end() ? key + "default" : *found;
  };
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& word : ours) {
    const std::string other = with_key_of(theirs, word);
    if (other != word) out.emplace_back(word, other);
  }
  for (const std::string& word : theirs) {
    const std::string other = with_key_of(ours, word);
    if (other.ends_with("=default")) out.emplace_back(other, word);
  }
  for (auto& [ours_choice, theirs_choice] : out) {
    ours_choice = readable_choice(ours_choice);
    theirs_choice = readable_choice(theirs_choice);
  }
  return out;
}

}  // namespace hyperslab::model
