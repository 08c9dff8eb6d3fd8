// SPDX-License-Identifier: Apache-2.0
#include "peft_modules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "exchange_names.hpp"
#include "hyperslab/nn/adapter_config.hpp"

namespace hyperslab::interop {
namespace {

constexpr std::string_view kOurs = "model/";
constexpr std::string_view kBlocks = "model/blocks.";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kOfExperts = ".experts.";

/// A module of Phi-3 and the modules of Llama that it holds, in the order of its rows.
struct Fusion {
  std::string_view name;
  std::array<std::string_view, 3> parts;
};
constexpr std::array<Fusion, 2> kFusions = {
    {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}}, {"gate_up_proj", {"gate_proj", "up_proj", ""}}}};

/// "blocks.0.attention.query" of "model/blocks.0.attention.query.weight".
std::string layer_of(const std::string& tensor) {
  return tensor.substr(kOurs.size(), tensor.size() - kOurs.size() - kWeight.size());
}

/// Versions of transformers differ in whether experts are modules of their own, which have a name.
bool is_adaptable(const ExchangedTensor& tensor) {
  const nn::AdapterConfig all = {.rank = 1};
  const std::string& ours = tensor.ours.front().name;
  return ours.starts_with(kBlocks) && ours.ends_with(kWeight) &&
         ours.find(kOfExperts) == std::string::npos && all.applies_to(layer_of(ours));
}

}  // namespace

Dim AdaptedModule::outputs() const {
  Dim sum = 0;
  for (const AdaptedLayer& layer : layers) sum += layer.outputs;
  return sum;
}

std::string AdaptedModule::target() const {
  const std::size_t last = name.rfind('.') + 1;
  if (name.substr(last) != "c_proj") return name.substr(last);
  return name.substr(name.rfind('.', last - 2) + 1);  // attention and MLP both have one
}

std::vector<AdaptedModule> adapted_modules(const model::ModelSpec& spec) {
  std::vector<AdaptedModule> modules;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    if (!is_adaptable(tensor)) continue;
    AdaptedModule& module = modules.emplace_back();
    module.name = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    for (const NamedShape& ours : tensor.ours) {
      module.layers.push_back({layer_of(ours.name), ours.shape[0]});
      module.inputs = ours.shape[1];
    }
  }
  return modules;
}

std::vector<AdaptedModule> fused_as_phi3(const std::vector<AdaptedModule>& modules) {
  std::vector<AdaptedModule> out;
  for (const AdaptedModule& module : modules) {
    const auto* const fusion = std::ranges::find_if(kFusions, [&](const Fusion& each) {
      return std::ranges::find(each.parts, module.target()) != each.parts.end();
    });
    AdaptedModule named = module;
    if (fusion != kFusions.end()) {
      named.name.replace(named.name.rfind('.') + 1, std::string::npos, fusion->name);
    }
    const auto found = std::ranges::find(out, named.name, &AdaptedModule::name);
    if (found == out.end()) {
      out.push_back(std::move(named));
    } else {
      found->layers.insert(found->layers.end(), module.layers.begin(), module.layers.end());
    }
  }
  return out;
}

bool is_fused_by_phi3(const std::string& tensor) {
  return std::ranges::any_of(kFusions, [&](const Fusion& fusion) {
    return tensor.find(fmt::format(".{}.", fusion.name)) != std::string::npos;
  });
}

bool means(const std::string& text, const AdaptedModule& module) {
  return module.name == text || module.name.ends_with("." + text);
}

}  // namespace hyperslab::interop
