// SPDX-License-Identifier: Apache-2.0
#include "peft_modules.hpp"

#include "exchange_names.hpp"
#include "hyperslab/nn/adapter_config.hpp"

namespace hyperslab::interop {
namespace {

constexpr std::string_view kOurs = "model/";
constexpr std::string_view kBlocks = "model/blocks.";
constexpr std::string_view kWeight = ".weight";

/// "blocks.0.attention.query" of "model/blocks.0.attention.query.weight".
std::string layer_of(const std::string& tensor) {
  return tensor.substr(kOurs.size(), tensor.size() - kOurs.size() - kWeight.size());
}

bool is_adaptable(const ExchangedTensor& tensor) {
  const nn::AdapterConfig all = {.rank = 1};
  const std::string& ours = tensor.ours.front().name;
  return ours.starts_with(kBlocks) && ours.ends_with(kWeight) && all.applies_to(layer_of(ours));
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

bool means(const std::string& text, const AdaptedModule& module) {
  return module.name == text || module.name.ends_with("." + text);
}

}  // namespace hyperslab::interop
