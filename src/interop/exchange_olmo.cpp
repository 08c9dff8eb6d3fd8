// SPDX-License-Identifier: Apache-2.0
#include "exchange_olmo.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace hyperslab::interop {

using model::ModelSpec;

bool is_of_olmo2(const ModelSpec& spec) {
  return spec.family == model::Family::llama &&
         spec.norm_place == model::NormPlace::post_sublayer && !spec.experts;
}

void check_olmo2_counterpart(const ModelSpec& spec, Complaints& complaints) {
  const auto wants = [&](bool holds, const char* key, const char* value) {
    complaints.unless(holds,
                      fmt::format("model.{} must be {} with norm_place post_sublayer", key, value));
  };
  wants(spec.qk_norm == model::QkNorm::width, "qk_norm", "width");
  wants(!spec.has_qkv_bias(), "bias and qkv_bias", "false");
  wants(spec.scores.window == 0, "window", "0");
  wants(spec.rope.fraction == 1, "rotary_fraction", "1");
}

void add_olmo2_config(double probability_dropout, nlohmann::ordered_json& config) {
  config["attention_bias"] = false;
  config["attention_dropout"] = probability_dropout;
  config["pad_token_id"] = nullptr;  // the default may be beyond the vocabulary
}

}  // namespace hyperslab::interop
