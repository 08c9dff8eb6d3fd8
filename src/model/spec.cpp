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

double default_scale_of_embeddings(const ModelSpec& spec) {
  const Dim width = spec.mup_base_width > 0 ? spec.mup_base_width : spec.width;
  return spec.position == Position::sinusoidal ? std::sqrt(static_cast<double>(width)) : 1;
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

/// Adds settings that differ from a plain model alone, so that identities of older checkpoints
/// stay.
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

void add_experts(const nn::ExpertsConfig& experts, Choices& choices) {
  if (!experts) return;
  const auto add = [&](const char* key, Dim value, Dim usual) {
    if (value != usual) choices.emplace_back(key, std::to_string(value));
  };
  add("experts", experts.count, 0);
  add("experts_active", experts.active, 0);
  add("experts_width", experts.width, 0);
  add("experts_shared", experts.shared, 0);
  add("experts_every", experts.every, 1);
  add("experts_first_dense", experts.first_dense, 0);
  if (experts.score != ops::RouterScore::softmax) {
    choices.emplace_back("experts_score", std::string(name_of(experts.score)));
  }
  if (!experts.normalize) choices.emplace_back("experts_normalize", "false");
  if (experts.scale != 1) choices.emplace_back("experts_scale", number(experts.scale));
  if (experts.has_bias()) choices.emplace_back("experts_bias", "true");
  add("experts_groups", experts.groups, 1);
  add("experts_group_active", experts.active_groups, 1);
}

/// Choices that are part of the identity only where they differ from what they once were always.
void add_others(const ModelSpec& spec, Choices& choices) {
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
  add_experts(spec.experts, choices);
  if (spec.is_of_images()) {
    choices.emplace_back("image", std::to_string(spec.image.size));
    choices.emplace_back("patch", std::to_string(spec.image.patch));
    choices.emplace_back("channels", std::to_string(spec.image.channels));
    choices.emplace_back("pooling", spec.image.pooling == Pooling::token ? "token" : "mean");
  }
}

/// A key whose values identity() stores as numbers, with their names in a deck.
struct Numbered {
  std::string_view key;
  std::vector<std::string_view> names;
};

std::vector<std::string_view> names_of_activations() {
  std::vector<std::string_view> names;
  names.reserve(ops::kActivations.size());
  for (const ops::Activation activation : ops::kActivations) names.push_back(name_of(activation));
  return names;
}

/// "activation=5" as "activation=swiglu".
std::string readable_choice(const std::string& choice) {
  static const std::vector<Numbered> kNumbered = {
      {"position", {"learned", "sinusoidal", "rope", "none", "sincos2d"}},
      {"norm", {"layernorm", "rmsnorm", "none"}},
      {"norm_place", {"pre", "post", "sandwich", "post_sublayer"}},
      {"activation", names_of_activations()}};
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
  add_others(spec, choices);
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
