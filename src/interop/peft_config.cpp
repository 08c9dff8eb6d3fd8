// SPDX-License-Identifier: Apache-2.0
// Reads an adapter_config.json. Keys that it leaves out have the defaults of PEFT's LoraConfig.
#include "peft_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_problem.hpp"

namespace hyperslab::interop {
namespace {

using nlohmann::json;

/// Keys that are read, or decide nothing about the results of saved adapters.
constexpr std::array<std::string_view, 24> kKnown = {"alpha_pattern",
                                                     "auto_mapping",
                                                     "base_model_name_or_path",
                                                     "ensure_weight_tying",
                                                     "eva_config",
                                                     "exclude_modules",
                                                     "fan_in_fan_out",
                                                     "inference_mode",
                                                     "layers_pattern",
                                                     "lora_alpha",
                                                     "lora_dropout",
                                                     "megatron_core",
                                                     "peft_type",
                                                     "peft_version",
                                                     "qalora_group_size",
                                                     "r",
                                                     "rank_pattern",
                                                     "revision",
                                                     "runtime_config",
                                                     "target_modules",
                                                     "task_type",
                                                     "use_rslora",
                                                     "bias",
                                                     "init_lora_weights"};
/// Initial values that leave the base as it is.
constexpr std::array<std::string_view, 5> kInits = {"true", "false", "\"gaussian\"",
                                                    "\"orthogonal\"", "\"eva\""};

bool is_nothing(const json& value) {
  return value.is_null() || value == json(false) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

std::string shown(const json& value) {
  constexpr std::size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

void check_settings(const json& config, Complaints& complaints) {
  for (const auto& [key, value] : config.items()) {
    complaints.unless(std::ranges::find(kKnown, key) != kKnown.end() || is_nothing(value),
                      fmt::format("{} is {}, which is not done here", key, shown(value)));
  }
  const auto one_of = [&](const char* key, std::span<const std::string_view> values,
                          const char* wanted) {
    const auto found = config.find(key);
    if (found == config.end()) return;
    const std::string text = found->dump(-1, ' ', true, json::error_handler_t::replace);
    complaints.unless(std::ranges::find(values, text) != values.end(),
                      fmt::format("{} is {}, only {} is done here", key, shown(*found), wanted));
  };
  constexpr std::array<std::string_view, 1> kNone = {"\"none\""};
  constexpr std::array<std::string_view, 2> kTasks = {"\"CAUSAL_LM\"", "null"};
  one_of("bias", kNone, "none");
  one_of("task_type", kTasks, "CAUSAL_LM");
  one_of("init_lora_weights", kInits, "an initialization that leaves the base as it is");
}

/// Keeps `value` if the key is absent.
template <class T>
void read_value(const json& config, const std::string& file, const char* key, T& value) {
  const auto found = config.find(key);
  if (found == config.end()) return;
  try {
    value = found->get<T>();
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: damaged JSON: {} is {}: {}", file, key,
                                                  shown(*found), io::json_problem(error)));
  }
}

PeftConfig read_values(const json& config, const std::string& file) {
  PeftConfig out;
  const auto is_given = [&](const char* key) {
    return config.contains(key) && !config[key].is_null();
  };
  read_value(config, file, "r", out.rank);
  read_value(config, file, "lora_alpha", out.alpha);
  read_value(config, file, "use_rslora", out.rank_scaled);
  read_value(config, file, "lora_dropout", out.dropout);
  if (is_given("rank_pattern")) read_value(config, file, "rank_pattern", out.rank_pattern);
  if (is_given("alpha_pattern")) read_value(config, file, "alpha_pattern", out.alpha_pattern);
  const auto targets = config.find("target_modules");
  if (targets != config.end() && targets->is_array()) {
    read_value(config, file, "target_modules", out.targets);
  }
  return out;
}

}  // namespace

Dim PeftConfig::rank_of(const AdaptedModule& module) const {
  for (const auto& [key, value] : rank_pattern) {
    if (means(key, module)) return value;
  }
  return rank;
}

double PeftConfig::scale_of(const AdaptedModule& module) const {
  double numerator = alpha;
  for (const auto& [key, value] : alpha_pattern) {
    if (means(key, module)) numerator = value;
  }
  const auto r = static_cast<double>(rank_of(module));
  return numerator / (rank_scaled ? std::sqrt(r) : r);
}

PeftConfig read_peft_config(const std::string& text, const std::string& file,
                            Complaints& complaints) {
  if (io::is_too_deep(text))
    throw Error(ExitCode::checkpoint, file + ": its JSON is nested too deep");
  try {
    const json config = json::parse(text);
    if (!config.is_object()) throw Error(ExitCode::checkpoint, file + ": expected a JSON object");
    if (const std::string type = config.value("peft_type", "none"); type != "LORA") {
      throw Error(ExitCode::checkpoint,
                  fmt::format("{}: peft_type is {}; only LORA is read", file, type));
    }
    check_settings(config, complaints);
    PeftConfig out = read_values(config, file);
    complaints.unless(out.rank >= 1, fmt::format("r is {}, expected 1 or more", out.rank));
    complaints.unless(out.alpha > 0 && std::isfinite(out.alpha),
                      fmt::format("lora_alpha is {}, expected more than 0{}", out.alpha,
                                  out.alpha == 0 ? ": with 0 the adapters add nothing" : ""));
    complaints.unless(
        out.dropout >= 0 && out.dropout < 1,
        fmt::format("lora_dropout is {}, expected at least 0 and below 1", out.dropout));
    return out;
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: damaged JSON: {}", file, io::json_problem(error)));
  }
}

}  // namespace hyperslab::interop
