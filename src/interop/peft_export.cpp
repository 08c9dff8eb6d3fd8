// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "exchange_config.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/interop/peft.hpp"
#include "peft_modules.hpp"

namespace hyperslab::interop {
namespace {

using nlohmann::ordered_json;

/// Reads a whole matrix of a checkpoint.
void read(const io::CheckpointReader& reader, const std::string& name, View out) {
  const io::SlabTarget target = {name, out.shape(), Hyperslab::whole(out.shape()), out};
  reader.read({&target, 1});
}

/// The adapters of a checkpoint as PEFT has them.
class Export {
 public:
  Export(const model::ModelSpec& model, nn::AdapterConfig adapter,
         const io::CheckpointReader& reader)
      : gpt2_(model.family == model::Family::gpt2), adapter_(std::move(adapter)), reader_(reader) {
    modules_ = adapted_modules(model);
    std::erase_if(modules_, [&](const AdaptedModule& module) {
      return std::ranges::none_of(module.layers, [&](const auto& each) { return has(each); });
    });
    in_blocks_ = !std::ranges::all_of(modules_, [&](const auto& each) { return shares_a(each); });
  }

  /// A and B of every module.
  [[nodiscard]] std::vector<io::SafetensorsSpec> tensors() const {
    std::vector<io::SafetensorsSpec> tensors;
    for (const AdaptedModule& module : modules_) {
      tensors.push_back({module.a(), {rank_of(module), module.inputs}});
      tensors.push_back({module.b(), {module.outputs(), rank_of(module)}});
    }
    return tensors;
  }
  void fill(std::size_t index, View out) const {
    const AdaptedModule& module = modules_[index / 2];
    index % 2 == 0 ? fill_a(module, out) : fill_b(module, out);
  }
  [[nodiscard]] std::string config(const std::string& base_name) const;

 private:
  [[nodiscard]] bool has(const AdaptedLayer& layer) const {
    return adapter_.applies_to(layer.name);
  }
  /// Only in blocks can a module have an A for each of its layers.
  [[nodiscard]] bool is_in_blocks(const AdaptedModule& module) const {
    return in_blocks_ && module.is_fused();
  }
  [[nodiscard]] Dim rank_of(const AdaptedModule& module) const {
    return adapter_.rank * (is_in_blocks(module) ? static_cast<Dim>(module.layers.size()) : 1);
  }
  [[nodiscard]] bool shares_a(const AdaptedModule& module) const;
  void fill_a(const AdaptedModule& module, View out) const;
  void fill_b(const AdaptedModule& module, View out) const;

  bool gpt2_;
  nn::AdapterConfig adapter_;
  const io::CheckpointReader& reader_;
  std::vector<AdaptedModule> modules_;
  bool in_blocks_ = false;
};

/// True if one A does for all layers of the module.
bool Export::shares_a(const AdaptedModule& module) const {
  if (!module.is_fused()) return true;
  if (!std::ranges::all_of(module.layers, [&](const auto& each) { return has(each); })) {
    return false;
  }
  const Shape shape = {adapter_.rank, module.inputs};
  Tensor first(Device::cpu, DType::f32, shape);
  Tensor other(Device::cpu, DType::f32, shape);
  read(reader_, module.layers.front().a(), first.view());
  return std::ranges::all_of(module.layers, [&](const AdaptedLayer& layer) {
    read(reader_, layer.a(), other.view());
    return std::ranges::equal(first.view().span<float>(), other.view().span<float>());
  });
}

void Export::fill_a(const AdaptedModule& module, View out) const {
  if (!is_in_blocks(module)) return read(reader_, module.layers.front().a(), out);
  std::ranges::fill(out.span<float>(), 0.0F);
  Dim row = 0;
  for (const AdaptedLayer& layer : module.layers) {
    if (has(layer)) read(reader_, layer.a(), out.slice(row, adapter_.rank));
    row += adapter_.rank;
  }
}

void Export::fill_b(const AdaptedModule& module, View out) const {
  const Dim rank = adapter_.rank;
  const Dim width = rank_of(module);
  std::ranges::fill(out.span<float>(), 0.0F);
  float* rows = out.data<float>();
  Dim column = 0;
  for (const AdaptedLayer& layer : module.layers) {
    if (has(layer)) {
      Tensor b(Device::cpu, DType::f32, {layer.outputs, rank});
      read(reader_, layer.b(), b.view());
      for (Dim row = 0; row < layer.outputs; ++row) {
        std::copy_n(b.view().data<float>() + row * rank, rank, rows + row * width + column);
      }
    }
    rows += layer.outputs * width;
    if (is_in_blocks(module)) column += rank;
  }
}

/// PEFT writes whole numbers without a point.
ordered_json number(double value) {
  const auto whole = static_cast<std::int64_t>(value);
  return static_cast<double>(whole) == value ? ordered_json(whole) : ordered_json(value);
}

std::string Export::config(const std::string& base_name) const {
  auto ranks = ordered_json::object();
  auto alphas = ordered_json::object();
  std::vector<std::string> targets;
  for (const AdaptedModule& module : modules_) {
    const std::string target = module.target();
    if (std::ranges::find(targets, target) != targets.end()) continue;
    targets.push_back(target);
    if (!is_in_blocks(module)) continue;
    const auto blocks = static_cast<double>(module.layers.size());
    ranks[target] = rank_of(module);  // and the scale stays as it is
    alphas[target] = number(adapter_.alpha * (adapter_.rank_scaled ? std::sqrt(blocks) : blocks));
  }
  ordered_json config;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base_name.empty() ? ordered_json() : ordered_json(base_name);
  config["revision"] = nullptr;
  config["inference_mode"] = true;
  config["r"] = adapter_.rank;
  config["lora_alpha"] = number(adapter_.alpha);
  config["lora_dropout"] = adapter_.dropout;
  config["use_rslora"] = adapter_.rank_scaled;
  config["use_dora"] = false;
  config["target_modules"] = targets;
  config["rank_pattern"] = ranks;
  config["alpha_pattern"] = alphas;
  config["bias"] = "none";
  config["fan_in_fan_out"] = gpt2_;  // Conv1D keeps (inputs, outputs)
  config["init_lora_weights"] = true;
  config["modules_to_save"] = nullptr;
  config["layers_to_transform"] = nullptr;
  config["layers_pattern"] = nullptr;
  return config.dump(2) + "\n";
}

}  // namespace

void export_peft(const model::ModelSpec& model, const nn::AdapterConfig& adapter,
                 const io::CheckpointReader& reader, const PeftExportOptions& options) {
  if (model.experts && adapter.is_of_mlp()) {
    throw Error(
        ExitCode::usage,
        reader.folder() +
            ": adapters of experts have no folder that all versions of PEFT read: fold them "
            "into the model with checkpoint merge, and export that");
  }
  require_counterpart(model);
  const Export adapters(model, adapter, reader);
  io::ModelFolder folder(options.output);
  folder.write_text("adapter_config.json", adapters.config(options.base_name));
  folder.write_file("adapter_model.safetensors", adapters.tensors(), options.dtype,
                    [&](std::size_t index, View out) { adapters.fill(index, out); });
  folder.commit();
}

}  // namespace hyperslab::interop
