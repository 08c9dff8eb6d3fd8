// SPDX-License-Identifier: Apache-2.0
#include "exchange_rope.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

constexpr const char* kOriginalContext = "original_max_position_embeddings";

/// Lengths that angles are scaled by.
struct Contexts {
  Dim longest = 0;                ///< max_position_embeddings
  std::optional<Dim> outer = {};  ///< kOriginalContext outside the object, which comes first
};

/// Reads the factor, which transformers requires. A yarn's factor may be null, and is then the
/// ratio of both contexts.
void read_factor(ConfigReader& rope, const std::string& type, const Contexts& contexts,
                 RopeSpec& spec, Complaints& complaints) {
  const bool by_ratio = type == "yarn" && rope.has("factor") && rope.find("factor") == nullptr;
  const double ratio = static_cast<double>(contexts.longest) /
                       static_cast<double>(std::max<Dim>(1, spec.original_context));
  complaints.unless(by_ratio || rope.find("factor") != nullptr,
                    "rope of type " + type + " has no factor");
  spec.factor = rope.real("factor", by_ratio ? ratio : 1);
  complaints.unless(spec.factor >= 1, fmt::format("factor {} is below 1", spec.factor));
}

/// Reads the keys of a type of scaling; all others must be absent.
void read_scaling(ConfigReader& rope, const std::string& type, const Contexts& contexts,
                  RopeSpec& spec, Complaints& complaints) {
  if (type == "linear") {
    spec.scaling = RopeScaling::linear;
    return read_factor(rope, type, contexts, spec, complaints);
  }
  spec.original_context = rope.size(kOriginalContext, contexts.longest);
  if (contexts.outer) spec.original_context = *contexts.outer;
  read_factor(rope, type, contexts, spec, complaints);
  if (type == "llama3") {
    spec.scaling = RopeScaling::llama3;
    complaints.unless(
        rope.find("low_freq_factor") != nullptr && rope.find("high_freq_factor") != nullptr,
        "rope of type llama3 needs low_freq_factor and high_freq_factor");
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
  complaints.unless(rope.find("attention_factor") == nullptr || spec.attention_factor > 0,
                    "attention_factor is 0, expected more");
  complaints.unless(spec.beta_slow > 0 && spec.beta_fast > spec.beta_slow,
                    "beta_fast must be above beta_slow, and both above 0");
  complaints.unless(rope.flag("truncate", true), "truncate is false, only true is done here");
}

void read_object(Import& in, const std::string& key, const json& value, const Contexts& contexts,
                 RopeSpec& spec) {
  ConfigReader rope(value, in.file);
  spec.theta = rope.real("rope_theta", spec.theta);
  const char* const kind = rope.has("rope_type") ? "rope_type" : "type";
  in.complaints.unless(!rope.has(kind) || rope.find(kind) != nullptr,
                       fmt::format("{} has {} null, which transformers fails on: name the type, "
                                   "or remove the key",
                                   key, kind));
  const std::string old_type = rope.text("type", "default");
  const std::string type = rope.text("rope_type", old_type);
  if (type == "linear" || type == "llama3" || type == "yarn") {
    read_scaling(rope, type, contexts, spec, in.complaints);
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
  if (value.is_object()) read_object(in, key, value, {context}, spec);
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
  Contexts contexts = {context};
  if (in.config.find(kOriginalContext) != nullptr) {
    contexts.outer = in.config.size(kOriginalContext, context);
  }
  const RopeSpec plain = spec;
  bool is_given = false;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* value = in.config.find(key);
    if (value == nullptr || (value->is_object() && value->empty())) continue;
    in.complaints.unless(value->is_object(), fmt::format("{} is no object", key));
    RopeSpec own = plain;
    if (value->is_object()) read_object(in, key, *value, contexts, own);
    in.complaints.unless(!is_given || own == spec,
                         "rope_parameters and rope_scaling differ, of which transformers takes "
                         "rope_scaling alone: remove the one that the model was not trained with");
    spec = own;
    is_given = true;
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
