// SPDX-License-Identifier: Apache-2.0
#include "exchange_rope.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace hyperslab::interop {
namespace {

using model::RopeScaling;
using model::RopeSpec;
using nlohmann::json;
using nlohmann::ordered_json;

// See docs/models.md.
constexpr const char* kDynamic =
    " (dynamic angles depend on how long a text is when a key is cached; without it the model is "
    "the same up to max_position_embeddings: remove it from config.json)";

/// What a type of scaling reads; the rest must be absent.
void read_scaling(ConfigReader& rope, const std::string& type, Dim context, RopeSpec& spec,
                  Complaints& complaints) {
  spec.factor = rope.real("factor", 1);
  complaints.unless(spec.factor >= 1, fmt::format("factor {} is below 1", spec.factor));
  if (type == "linear") {
    spec.scaling = RopeScaling::linear;
    return;
  }
  spec.original_context = rope.size("original_max_position_embeddings", context);
  if (type == "llama3") {
    spec.scaling = RopeScaling::llama3;
    spec.low_factor = rope.real("low_freq_factor", spec.low_factor);
    spec.high_factor = rope.real("high_freq_factor", spec.high_factor);
    complaints.unless(spec.low_factor > 0 && spec.high_factor > spec.low_factor,
                      "high_freq_factor must be above low_freq_factor, and both above 0");
    return;
  }
  spec.scaling = RopeScaling::yarn;
  spec.beta_fast = rope.real("beta_fast", spec.beta_fast);
  spec.beta_slow = rope.real("beta_slow", spec.beta_slow);
  spec.attention_factor = rope.real("attention_factor", 0);
  complaints.unless(spec.beta_slow > 0 && spec.beta_fast > spec.beta_slow,
                    "beta_fast must be above beta_slow, and both above 0");
  complaints.unless(rope.flag("truncate", true), "truncate is false, only true is done here");
}

void read_object(Import& in, const std::string& key, const json& value, Dim context,
                 RopeSpec& spec) {
  ConfigReader rope(value, in.file);
  spec.theta = rope.real("rope_theta", spec.theta);
  const std::string old_type = rope.text("type", "default");
  const std::string type = rope.text("rope_type", old_type);
  if (type == "linear" || type == "llama3" || type == "yarn") {
    read_scaling(rope, type, context, spec, in.complaints);
  } else {
    in.complaints.unless(
        type == "default",
        fmt::format("{} has type {}, only default, linear, llama3 and yarn are known{}", key, type,
                    type == "dynamic" ? kDynamic : ""));
  }
  spec.fraction = rope.real("partial_rotary_factor", spec.fraction);
  const std::vector<std::string> unknown =
      rope.check_rest(model::Family::llama, in.complaints, fmt::format("{}: ", key));
  in.complaints.unless(unknown.empty(), fmt::format("{} has {}, which is not done here", key,
                                                    fmt::join(unknown, ", ")));
}

}  // namespace

RopeSpec read_rope_of(Import& in, const std::string& key, const json& value, double theta,
                      Dim context) {
  RopeSpec spec;
  spec.theta = theta;
  in.complaints.unless(value.is_object(), fmt::format("{} is no object", key));
  if (value.is_object()) read_object(in, key, value, context, spec);
  in.complaints.unless(spec.theta > 1,
                       fmt::format("{}: rope_theta is {}, expected more than 1", key, spec.theta));
  in.complaints.unless(spec.fraction == 1, key + ": partial_rotary_factor is not 1");
  return spec;
}

bool turns_pairs(const RopeSpec& spec, Dim head_width) {
  const double turned = spec.fraction * static_cast<double>(head_width);
  return turned >= 2 && spec.fraction <= 1 && std::fmod(std::floor(turned), 2) == 0;
}

RopeSpec read_rope(Import& in, double theta, Dim context, std::optional<double> fraction) {
  RopeSpec spec;
  const bool partial = fraction.has_value();
  if (partial) spec.fraction = in.config.real("partial_rotary_factor", *fraction);
  spec.theta = in.config.real("rope_theta", theta);
  in.complaints.unless(spec.theta > 1,
                       fmt::format("rope_theta is {}, expected more than 1", spec.theta));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* value = in.config.find(key);
    if (value == nullptr) continue;
    in.complaints.unless(value->is_object(), fmt::format("{} is no object", key));
    if (value->is_object()) read_object(in, key, *value, context, spec);
  }
  in.complaints.unless(partial || spec.fraction == 1, "partial_rotary_factor is not 1");
  return spec;
}

void add_rope(const RopeSpec& rope, ordered_json& config) {
  config["rope_theta"] = rope.theta;
  if (rope.scaling == RopeScaling::none) return;
  ordered_json scaling;
  scaling["rope_type"] = name_of(rope.scaling);
  scaling["factor"] = rope.factor;
  if (rope.scaling != RopeScaling::linear) {
    scaling["original_max_position_embeddings"] = rope.original_context;
  }
  if (rope.scaling == RopeScaling::llama3) {
    scaling["low_freq_factor"] = rope.low_factor;
    scaling["high_freq_factor"] = rope.high_factor;
  }
  if (rope.scaling == RopeScaling::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor > 0) scaling["attention_factor"] = rope.attention_factor;
  }
  config["rope_scaling"] = scaling;
}

}  // namespace hyperslab::interop
