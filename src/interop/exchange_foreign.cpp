// SPDX-License-Identifier: Apache-2.0
// Reads a config.json. Defaults of keys that it leaves out are those of transformers' GPT2Config
// and LlamaConfig.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "config_reader.hpp"
#include "exchange_config.hpp"
#include "exchange_vit.hpp"
#include "hyperslab/io/json_depth.hpp"

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

/// The base of the rotary angles, which newer versions keep in rope_parameters.
double read_rope_theta(Import& in) {
  double theta = in.config.real("rope_theta", 10000);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* value = in.config.find(key);
    if (value == nullptr) continue;
    in.complaints.unless(value->is_object(), fmt::format("{} is no object", key));
    if (!value->is_object()) continue;
    ConfigReader rope(*value, in.file);
    theta = rope.real("rope_theta", theta);
    const std::string old_type = rope.text("type", "default");
    const std::string type = rope.text("rope_type", old_type);
    in.complaints.unless(type == "default",
                         fmt::format("{} has type {}, only default is known", key, type));
    in.complaints.unless(rope.real("partial_rotary_factor", 1) == 1,
                         "partial_rotary_factor is not 1");
    const std::vector<std::string> unknown =
        rope.check_rest(model::Family::llama, in.complaints, fmt::format("{}: ", key));
    in.complaints.unless(
        unknown.empty() || type != "default",
        fmt::format("{} has {}, which is not done here", key, fmt::join(unknown, ", ")));
  }
  return theta;
}

ModelSpec read_llama(Import& in) {
  ModelSpec spec = model::preset(model::Family::llama);
  ConfigReader& config = in.config;
  Complaints& complaints = in.complaints;
  spec.layers = config.size("num_hidden_layers", 32, 1 << 16);
  spec.width = config.size("hidden_size", 4096);
  spec.heads = config.size("num_attention_heads", 32);
  spec.kv_heads = config.size("num_key_value_heads", spec.heads);
  spec.ffn_width = config.size("intermediate_size", 11008);
  spec.vocabulary = config.size("vocab_size", 32000, 1LL << 31);
  spec.context = config.size("max_position_embeddings", 2048);
  spec.norm_eps = config.real("rms_norm_eps", 1e-6);
  spec.rope_theta = read_rope_theta(in);
  spec.bias = config.flag("attention_bias", false);
  read_common(in, spec, false);
  read_special_ids(in, spec, 1, 2);
  const double probabilities = config.real("attention_dropout", 0);
  read_dropout(in, spec, 0, 0, probabilities, fmt::format("attention_dropout {}", probabilities));
  complaints.unless(spec.bias == config.flag("mlp_bias", false),
                    "attention_bias and mlp_bias differ, here both or none have biases");
  const std::string activation = config.text("hidden_act", "silu");
  complaints.unless(activation == "silu" || activation == "swish",
                    "hidden_act is " + activation + ", only silu is known");
  const Dim head_width = config.size("head_dim", spec.head_width());
  complaints.unless(head_width * spec.heads == spec.width,
                    fmt::format("head_dim {} is not hidden_size / num_attention_heads ({} / {})",
                                head_width, spec.width, spec.heads));
  return spec;
}

json parsed_object(const std::string& text, const std::string& file) {
  if (io::is_too_deep(text))
    throw Error(ExitCode::checkpoint, file + ": its JSON is nested too deep");
  try {
    json parsed = json::parse(text);
    if (parsed.is_object()) return parsed;
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: damaged JSON: {}", file, error.what()));
  }
  throw Error(ExitCode::checkpoint, file + ": expected a JSON object");
}

ModelSpec read_model(Import& in, const std::string& type) {
  if (type == "gpt2") return read_gpt2(in);
  if (type == "llama") return read_llama(in);
  if (type == "vit") return read_vit(in);
  if (type == "none" && in.config.find("architecture") != nullptr) return read_timm(in);
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: model_type is {}; gpt2, llama and vit are read, and timm's vit",
                          in.file, type));
}

}  // namespace

ForeignConfig read_foreign_config(const std::string& text, const std::string& file,
                                  std::optional<double> dropout) {
  const json parsed = parsed_object(text, file);
  Import in = {ConfigReader(parsed, file), file, dropout, {}, {}};
  const std::string type = in.config.text("model_type", "none");
  ForeignConfig out;
  out.spec = read_model(in, type);
  const std::vector<std::string> unknown = in.config.check_rest(out.spec.family, in.complaints);
  in.complaints.raise(ExitCode::checkpoint, file + ": this model cannot be imported");
  out.warnings = std::move(in.warnings);
  if (!unknown.empty()) {
    out.warnings.push_back(fmt::format("{} {} not known here and not used",
                                       fmt::join(unknown, ", "),
                                       unknown.size() == 1 ? "is" : "are"));
  }
  for (std::string& warning : out.warnings) warning = file + ": " + warning;
  return out;
}

}  // namespace hyperslab::interop
