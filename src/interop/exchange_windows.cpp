// SPDX-License-Identifier: Apache-2.0
#include "exchange_windows.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace hyperslab::interop {

using model::AttentionSpec;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

bool describes(const AttentionSpec& spec, const std::vector<bool>& windowed) {
  for (Dim layer = 0; layer < std::ssize(windowed); ++layer) {
    if ((spec.window_of(layer) > 0) != windowed[static_cast<std::size_t>(layer)]) return false;
  }
  return true;
}

}  // namespace

AttentionSpec windows_of(Import& in, Dim window, const std::vector<bool>& windowed) {
  AttentionSpec spec;
  if (std::ranges::none_of(windowed, [](bool has) { return has; })) return spec;
  spec.window = window;
  const Dim layers = std::ssize(windowed);
  for (spec.first_windowed = 0; spec.first_windowed < layers; ++spec.first_windowed) {
    if (describes(spec, windowed)) return spec;
  }
  spec.first_windowed = 0;
  for (spec.full_every = 2; spec.full_every <= layers; ++spec.full_every) {
    if (describes(spec, windowed)) return spec;
  }
  in.complaints.unless(false,
                       "layer_types has a pattern that is not done here: sliding_attention must be "
                       "in all layers, in all from one on, or in all but every n-th");
  return spec;
}

std::vector<bool> windowed_layers(Import& in, Dim layers, const std::vector<bool>& fallback) {
  const json* types = in.config.find("layer_types");
  if (types == nullptr) return fallback;
  const auto is_known = [](const json& type) { return type == kSliding || type == kFull; };
  const bool good =
      types->is_array() && std::ssize(*types) == layers && std::ranges::all_of(*types, is_known);
  in.complaints.unless(good, "layer_types is not a sliding_attention or full_attention a layer");
  if (!good) return fallback;
  std::vector<bool> windowed;
  for (const json& type : *types) windowed.push_back(type == kSliding);
  return windowed;
}

std::vector<bool> every_layer_but(Dim layers, Dim full_every) {
  AttentionSpec spec;
  spec.window = 1;
  spec.full_every = full_every;
  std::vector<bool> windowed;
  for (Dim layer = 0; layer < layers; ++layer) windowed.push_back(spec.window_of(layer) > 0);
  return windowed;
}

ordered_json layer_types(const model::ModelSpec& spec) {
  ordered_json types = ordered_json::array();
  for (Dim layer = 0; layer < spec.layers; ++layer) {
    types.push_back(spec.scores.window_of(layer) > 0 ? kSliding : kFull);
  }
  return types;
}

}  // namespace hyperslab::interop
