// SPDX-License-Identifier: Apache-2.0
// Reads a config.json. Defaults of keys that it leaves out are those of transformers' GPT2Config
// and LlamaConfig.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "complaints.hpp"
#include "exchange_config.hpp"
#include "exchange_keys.hpp"
#include "hyperslab/io/json_depth.hpp"

namespace hyperslab::interop {
namespace {

using model::ModelSpec;
using nlohmann::json;

std::string shown(const json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

/// Values of a config.json with their defaults; notes which keys were asked for.
class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& file) : config_(config), file_(file) {}

  [[nodiscard]] Dim size(const char* key, Dim fallback, Dim most = 1 << 24) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 ||
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
      fail(key, fmt::format("a whole number from 1 to {}", most), *value);
    }
    return value->get<Dim>();
  }
  /// A finite number of at least 0.
  [[nodiscard]] double real(const char* key, double fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0) || std::isinf(value->get<double>())) {
      fail(key, "a number of at least 0", *value);
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(key, "true or false", *value);
    return value->get<bool>();
  }
  [[nodiscard]] std::string text(const char* key, const std::string& fallback) {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail(key, "a text", *value);
    return value->get<std::string>();
  }
  /// An id or a list of ids; a null has none.
  [[nodiscard]] std::vector<std::int64_t> ids(const char* key, std::int64_t fallback) {
    if (!config_.contains(key)) return {fallback};
    const json* value = find(key);
    if (value == nullptr) return {};
    std::vector<std::int64_t> out;
    for (const json& one : value->is_array() ? *value : json::array({*value})) {
      if (!one.is_number_integer()) fail(key, "an id, a list of ids or null", *value);
      if (one.is_number_unsigned() && one.get<std::uint64_t>() > kMostId) {
        fail(key, "an id below 2^31", *value);
      }
      out.push_back(one.get<std::int64_t>());
    }
    return out;
  }
  /// The value of a key that is there and not null.
  [[nodiscard]] const json* find(const char* key) {
    read_.insert(key);
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  /// A size with two names, which must agree if both are given.
  [[nodiscard]] Dim size_of_two(const char* key, const char* alias, Dim fallback, Dim most,
                                Complaints& complaints) {
    const Dim first = size(key, fallback, most);
    const Dim second = size(alias, first, most);
    complaints.unless(
        find(key) == nullptr || first == second,
        fmt::format("{} is {} and {}, its other name, is {}", key, first, alias, second));
    return second;
  }
  /// Checks the keys that nothing has asked for; returns those that are in no table. `where`:
  /// before their names in complaints.
  [[nodiscard]] std::vector<std::string> check_rest(model::Family family, Complaints& complaints,
                                                    const std::string& where = "") const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : config_.items()) {
      if (read_.contains(key)) continue;
      const UnreadKey kind = check_unread(family, key, value);
      if (kind == UnreadKey::unknown) unknown.push_back(key);
      const std::string only = neutral_value(family, key);
      complaints.unless(kind != UnreadKey::refused,
                        fmt::format("{}{} is {}, {}", where, key, shown(value),
                                    only.empty() ? "which is not done here"
                                                 : fmt::format("only {} is done here", only)));
    }
    return unknown;
  }

 private:
  static constexpr std::uint64_t kMostId = (std::uint64_t{1} << 31) - 1;

  [[noreturn]] void fail(const char* key, const std::string& expected, const json& found) const {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {}: expected {}, found {}", file_, key, expected, shown(found)));
  }
  const json& config_;
  const std::string& file_;
  std::set<std::string, std::less<>> read_;
};

/// Everything that reading a config.json needs.
struct Import {
  ConfigReader config;
  const std::string& file;
  std::optional<double> dropout;  ///< in place of the file's
  Complaints complaints;
  std::vector<std::string> warnings;
};

/// `all`: what the file asks for by name. model.dropout is one probability for the embedding, the
/// residual stream and, with attention: reference, attention's probabilities.
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

}  // namespace

ForeignConfig read_foreign_config(const std::string& text, const std::string& file,
                                  std::optional<double> dropout) {
  const json parsed = parsed_object(text, file);
  Import in = {ConfigReader(parsed, file), file, dropout, {}, {}};
  const std::string type = in.config.text("model_type", "none");
  if (type != "gpt2" && type != "llama") {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: model_type is {}; gpt2 and llama are read", file, type));
  }
  ForeignConfig out;
  out.spec = type == "gpt2" ? read_gpt2(in) : read_llama(in);
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
