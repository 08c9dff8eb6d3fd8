// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exchange_config.hpp"
#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// Two layers of either family, as a deck resolves them.
inline model::ModelSpec small(model::Family family) {
  model::ModelSpec spec = model::preset(family);
  spec.layers = 2;
  spec.width = 8;
  spec.heads = 4;
  spec.kv_heads = family == model::Family::gpt2 ? 4 : 2;
  spec.ffn_width = 12;
  spec.vocabulary = 20;
  spec.context = 6;
  spec.embedding_scale = 1;
  return spec;
}

/// The config.json of a small model with these keys changed or added.
inline std::string with_keys(model::Family family, const nlohmann::json& keys) {
  nlohmann::json config = nlohmann::json::parse(config_json(small(family), DType::f32, {}));
  config.update(keys);
  return config.dump();
}

}  // namespace hyperslab::interop
