// SPDX-License-Identifier: Apache-2.0
// Reads a config.json. Keys that it leaves out have the defaults of transformers' GPT2Config,
// LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Phi3Config and Olmo2Config.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "config_reader.hpp"
#include "exchange_config.hpp"
#include "exchange_experts.hpp"
#include "exchange_gemma.hpp"
#include "exchange_neox.hpp"
#include "exchange_rope.hpp"
#include "exchange_vit.hpp"
#include "exchange_windows.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_problem.hpp"

namespace hyperslab::interop {

using model::ModelSpec;
using nlohmann::json;

void read_dropout(Import& in, ModelSpec& spec, double embedding, double residual,
                  double probabilities, const std::string& all) {
  if (in.dropout) {
    spec.dropout = *in.dropout;
    return;
  }
  in.complaints.unless(residual < 1, "a dropout must be below 1, found " + all);
  in.complaints.unless(
      embedding == residual && (probabilities == 0 || probabilities == residual),
      fmt::format("{}: here model.dropout is one probability for embedding, residual stream and "
                  "attention; it matters only to training: give --dropout P, such as 0",
                  all));
  spec.dropout = residual;
  if (probabilities > 0) spec.attention = model::AttentionPath::reference;
  if (probabilities > 0) {
    in.warnings.push_back(all +
                          ": model.attention is reference, the only path with dropout of "
                          "attention's probabilities; --dropout 0 leaves the faster ones");
  }
}

namespace {

/// Ids beyond the vocabulary, which defaults of small models are, cannot occur.
void read_special_ids(Import& in, ModelSpec& spec, std::int64_t bos, std::int64_t eos) {
  const auto read = [&](const char* key, std::int64_t fallback) {
    std::vector<std::int64_t> ids = in.config.ids(key, fallback);
    const auto outside = [&](std::int64_t id) { return id < 0 || id >= spec.vocabulary; };
    if (in.config.find(key) != nullptr && std::ranges::any_of(ids, outside)) {
      in.warnings.push_back(fmt::format("{} [{}] is not used: the vocabulary has {} ids", key,
                                        fmt::join(ids, ", "), spec.vocabulary));
    }
    std::erase_if(ids, outside);
    return ids;
  };
  const std::vector<std::int64_t> begin = read("bos_token_id", bos);
  if (!begin.empty()) spec.bos_token = begin.front();
  spec.eos_tokens = read("eos_token_id", eos);
}

void read_common(Import& in, ModelSpec& spec, bool tied) {
  spec.tie_embeddings = in.config.flag("tie_word_embeddings", tied);
  spec.embedding_scale = 1;
  const double init_std = in.config.real("initializer_range", spec.init_std);
  if (init_std > 0) spec.init_std = init_std;
}

ModelSpec read_gpt2(Import& in) {
  ModelSpec spec = model::preset(model::Family::gpt2);
  ConfigReader& config = in.config;
  const auto size = [&](const char* key, const char* alias, Dim fallback, Dim most) {
    return config.size_of_two(key, alias, fallback, most, in.complaints);
  };
  constexpr Dim kMost = 1 << 24;
  spec.layers = size("n_layer", "num_hidden_layers", 12, 1 << 16);
  spec.width = size("n_embd", "hidden_size", 768, kMost);
  spec.heads = spec.kv_heads = size("n_head", "num_attention_heads", 12, kMost);
  spec.context = size("n_positions", "max_position_embeddings", 1024, kMost);
  spec.ffn_width = config.size("n_inner", 4 * spec.width);
  spec.vocabulary = config.size("vocab_size", 50257, 1LL << 31);
  spec.norm_eps = config.real("layer_norm_epsilon", 1e-5);
  read_common(in, spec, true);
  read_special_ids(in, spec, 50256, 50256);
  const double embedding = config.real("embd_pdrop", 0.1);
  const double residual = config.real("resid_pdrop", 0.1);
  const double probabilities = config.real("attn_pdrop", 0.1);
  read_dropout(in, spec, embedding, residual, probabilities,
               fmt::format("embd_pdrop {}, resid_pdrop {}, attn_pdrop {}", embedding, residual,
                           probabilities));
  const std::string activation = config.text("activation_function", "gelu_new");
  static const std::set<std::string> tanh_gelu = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast",
                                                  "gelu_python_tanh", "gelu_accurate"};
  in.complaints.unless(
      tanh_gelu.contains(activation),
      "activation_function is " + activation + ", only gelu_new and its other names are known");
  return spec;
}

/// Models of Llama's kind: values of absent keys, and the biases that they have.
struct LlamaKind {
  std::string_view type;
  Dim ffn_width;
  Dim kv_heads;  ///< 0: as many as heads
  Dim vocabulary;
  Dim context;
  std::int64_t bos, eos;  ///< -1: none
  bool qkv_bias;          ///< only queries, keys and values have one
  Dim head_width;         ///< 0: hidden_size / num_attention_heads
  model::QkNorm qk_norm = model::QkNorm::none;
  Dim width = 4096;
  double norm_eps = 1e-6;
  Dim layers = 32;
  Dim heads = 32;
  double theta = 10000;

  [[nodiscard]] bool is_phi3() const { return type == "phi3"; }
  [[nodiscard]] bool is_olmo2() const { return type == "olmo2"; }
  [[nodiscard]] bool has_experts() const { return interop::has_experts(type); }
  [[nodiscard]] bool knows_windows() const {
    return type != "llama" && !is_olmo2() && !has_experts();
  }
  /// True if no layer can have the bias that attention_bias asks for.
  [[nodiscard]] bool lacks_bias() const {
    return type == "qwen3" || is_phi3() || is_olmo2() || has_experts();
  }
};
using model::QkNorm;
constexpr std::array<LlamaKind, 9> kLlamaKinds = {{
    {"llama", 11008, 0, 32000, 2048, 1, 2, false, 0},
    {"mistral", 14336, 8, 32000, 131072, 1, 2, false, 0},
    {"qwen2", 22016, 32, 151936, 32768, -1, -1, true, 0},
    {"qwen3", 22016, 32, 151936, 32768, -1, -1, false, 128, QkNorm::head},
    {"phi3", 8192, 0, 32064, 4096, 1, 32000, false, 0, QkNorm::none, 3072, 1e-5},
    {"olmo2", 11008, 0, 50304, 2048, -1, 50279, false, 0, QkNorm::width, 4096, 1e-5},
    {kMixtral, 14336, 8, 32000, 131072, 1, 2, false, 0, QkNorm::none, 4096, 1e-5, 32, 32, 1e6},
    {kQwen3Moe, 6144, 4, 151936, 32768, -1, -1, false, 0, QkNorm::head, 2048, 1e-6, 24},
    {kOlmoe, 2048, 0, 50304, 4096, -1, 50279, false, 0, QkNorm::width, 2048, 1e-5, 16, 16},
}};

constexpr Dim kQwenFullLayers = 28;  // if the file has no max_window_layers

/// The window of a model of Llama's kind. One that hides nothing is none.
void read_windows(Import& in, const LlamaKind& kind, ModelSpec& spec) {
  ConfigReader& config = in.config;
  const bool mistral = kind.type == "mistral";
  const bool is_used = mistral || kind.is_phi3() || config.flag("use_sliding_window", false);
  const bool is_given = config.find("sliding_window") != nullptr;
  constexpr Dim kMistralWindow = 4096;  // if the file leaves it out
  const bool by_default = mistral && !config.has("sliding_window");
  const Dim window = is_given     ? config.size("sliding_window", 0)
                     : by_default ? kMistralWindow
                                  : spec.context;
  const json* first = config.find("max_window_layers");
  const Dim first_windowed = first != nullptr && first->is_number_unsigned() ? first->get<Dim>()
                             : mistral || kind.is_phi3()                     ? 0
                                                                             : kQwenFullLayers;
  std::vector<bool> windowed;
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    windowed.push_back(is_used && layer >= first_windowed);
  }
  windowed = windowed_layers(in, spec.layers, windowed);
  if (window >= spec.context) return;
  const model::AttentionSpec layers = windows_of(in, window, windowed);
  spec.scores.window = layers.window;
  spec.scores.full_every = layers.full_every;
  spec.scores.first_windowed = layers.first_windowed;
}

void read_llama_dropout(Import& in, const LlamaKind& kind, ModelSpec& spec) {
  ConfigReader& config = in.config;
  const double probabilities = config.real("attention_dropout", 0);
  std::string all = fmt::format("attention_dropout {}", probabilities);
  if (!kind.is_phi3()) return read_dropout(in, spec, 0, 0, probabilities, all);
  const double embedding = config.real("embd_pdrop", 0);
  const double residual = config.real("resid_pdrop", 0);
  all = fmt::format("embd_pdrop {}, resid_pdrop {}, {}", embedding, residual, all);
  read_dropout(in, spec, embedding, residual, probabilities, all);
}

/// Phi-3 turns a part of each head, and scales angles in a way of its own.
void read_phi3_rope(Import& in, ModelSpec& spec) {
  in.complaints.unless(spec.rope.scaling == model::RopeScaling::none,
                       fmt::format("the rope of Phi-3 has type {}, only default is done here",
                                   name_of(spec.rope.scaling)));
  in.complaints.unless(turns_pairs(spec.rope, spec.head_width()),
                       fmt::format("partial_rotary_factor is {}, expected at most 1 and an even "
                                   "number, from 2, of the {} dimensions of a head",
                                   spec.rope.fraction, spec.head_width()));
}

ModelSpec read_llama(Import& in, const LlamaKind& kind) {
  ModelSpec spec = model::preset(model::Family::llama);
  ConfigReader& config = in.config;
  Complaints& complaints = in.complaints;
  spec.layers = config.size("num_hidden_layers", kind.layers, 1 << 16);
  spec.width = config.size("hidden_size", kind.width);
  spec.heads = config.size("num_attention_heads", kind.heads);
  spec.kv_heads =
      config.size("num_key_value_heads", kind.kv_heads > 0 ? kind.kv_heads : spec.heads);
  spec.ffn_width = config.size("intermediate_size", kind.ffn_width);
  spec.vocabulary = config.size("vocab_size", kind.vocabulary, 1LL << 31);
  spec.context = config.size("max_position_embeddings", kind.context);
  spec.norm_eps = config.real("rms_norm_eps", kind.norm_eps);
  spec.rope = read_rope(in, kind.theta, spec.context,
                        kind.is_phi3() ? std::optional<double>(1) : std::nullopt);
  spec.bias = config.flag("attention_bias", false);
  spec.qkv_bias = kind.qkv_bias;
  spec.qk_norm = kind.qk_norm;
  if (kind.is_olmo2()) spec.norm_place = model::NormPlace::post_sublayer;
  if (kind.knows_windows()) read_windows(in, kind, spec);
  read_common(in, spec, false);
  read_special_ids(in, spec, kind.bos, kind.eos);
  read_llama_dropout(in, kind, spec);
  complaints.unless(
      spec.bias == config.flag("mlp_bias", false) && !(kind.lacks_bias() && spec.bias),
      kind.lacks_bias() && spec.bias ? "attention_bias is true, only false is done here"
                                     : "attention_bias and mlp_bias differ, here both or none "
                                       "have biases");
  const std::string activation = config.text("hidden_act", "silu");
  complaints.unless(activation == "silu" || activation == "swish",
                    "hidden_act is " + activation + ", only silu is known");
  const Dim head_width =
      config.size("head_dim", kind.head_width > 0 ? kind.head_width : spec.head_width());
  if (head_width * spec.heads != spec.width) spec.own_head_width = head_width;
  if (kind.is_phi3()) read_phi3_rope(in, spec);
  if (kind.has_experts()) read_experts(in, kind.type, spec);
  return spec;
}

json parsed_object(const std::string& text, const std::string& file) {
  if (io::is_too_deep(text))
    throw Error(ExitCode::checkpoint, file + ": its JSON is nested too deep");
  try {
    json parsed = json::parse(text);
    if (parsed.is_object()) return parsed;
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: damaged JSON: {}", file, io::json_problem(error)));
  }
  throw Error(ExitCode::checkpoint, file + ": expected a JSON object");
}

ModelSpec read_model(Import& in, const std::string& type) {
  if (type == "gpt2") return read_gpt2(in);
  const auto* const kind = std::ranges::find(kLlamaKinds, type, &LlamaKind::type);
  if (kind != kLlamaKinds.end()) return read_llama(in, *kind);
  if (type == "gemma2" || type == "gemma3_text") {
    ModelSpec spec = read_gemma(in, type);
    read_common(in, spec, true);
    spec.embedding_scale = std::sqrt(static_cast<double>(spec.width));
    read_special_ids(in, spec, 2, 1);
    return spec;
  }
  if (type == "gpt_neox") {
    ModelSpec spec = read_neox(in);
    read_common(in, spec, false);
    read_special_ids(in, spec, 0, 2);
    return spec;
  }
  if (type == "vit") return read_vit(in);
  if (type == "none" && in.config.find("architecture") != nullptr) return read_timm(in);
  const char* why =
      type == "qwen2_moe" ? ", whose shared expert has a gate, which is not done here" : "";
  throw Error(
      ExitCode::checkpoint,
      fmt::format(
          "{}: model_type is {}{}; gpt2, llama, mistral, qwen2, qwen3, phi3, olmo2, gemma2, "
          "gemma3_text, gpt_neox, mixtral, qwen3_moe, olmoe and vit are read, and timm's vit",
          in.file, type, why));
}

}  // namespace

ForeignConfig read_foreign_config(const std::string& text, const std::string& file,
                                  const ImportOptions& options) {
  const json parsed = parsed_object(text, file);
  Import in = {ConfigReader(parsed, file), file, options.dropout, {}, {}};
  const std::string type = in.config.text("model_type", "none");
  ForeignConfig out;
  out.spec = read_model(in, type);
  in.config.check_all(out.spec.family, options.ignored_keys, in.complaints);
  in.complaints.raise(ExitCode::checkpoint, file + ": this model cannot be imported");
  out.warnings = std::move(in.warnings);
  for (std::string& warning : out.warnings) warning = file + ": " + warning;
  return out;
}

}  // namespace hyperslab::interop
