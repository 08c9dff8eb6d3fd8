// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/interop/peft.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/io/text_file.hpp"
#include "peft_config.hpp"

namespace hyperslab::interop {
namespace {

constexpr const char* kConfig = "/adapter_config.json";
constexpr const char* kTensors = "/adapter_model.safetensors";
constexpr std::uint64_t kMostAdapterConfigBytes = 16 << 20;

io::SafetensorsReader open(const std::string& folder) {
  if (std::filesystem::exists(folder + kTensors)) return io::SafetensorsReader(folder + kTensors);
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: there is no adapter_model.safetensors; save the adapter again with "
                          "safe_serialization",
                          folder));
}

std::string some(const std::set<std::string>& names) {
  constexpr long kMost = 5;
  const auto count = static_cast<long>(names.size());
  const std::vector<std::string> first(names.begin(),
                                       std::next(names.begin(), std::min(kMost, count)));
  return fmt::format("{}{}", fmt::join(first, ", "), count > kMost ? ", ..." : "");
}

bool has(const io::SafetensorsReader& reader, const std::string& name, const Shape& shape) {
  const auto found = reader.tensors().find(name);
  return found != reader.tensors().end() && std::ranges::equal(found->second.shape, shape.dims());
}

Tensor matrix(const io::SafetensorsReader& reader, const std::string& name, const Shape& shape) {
  Tensor out(Device::cpu, DType::f32, shape);
  reader.read(name, out.view());
  return out;
}

/// The modules of the base by the names that the folder has for them.
std::vector<AdaptedModule> modules_of(const model::ModelSpec& base,
                                      const io::SafetensorsReader& reader) {
  const std::vector<AdaptedModule> modules = adapted_modules(base);
  const bool are_fused = std::ranges::any_of(
      reader.tensors(), [](const auto& tensor) { return is_fused_by_phi3(tensor.first); });
  return are_fused ? fused_as_phi3(modules) : modules;
}

/// Modules that target_modules or a pattern names and that are none here.
void check_names(const PeftConfig& config, const std::vector<AdaptedModule>& all,
                 Complaints& complaints) {
  const auto check = [&](const std::string& text, const char* where) {
    complaints.unless(
        std::ranges::any_of(all, [&](const auto& each) { return means(text, each); }),
        fmt::format("{} names {}, which is no linear layer of the base's blocks", where, text));
  };
  for (const std::string& target : config.targets) check(target, "target_modules");
  for (const auto& [key, rank] : config.rank_pattern) check(key, "rank_pattern");
  for (const auto& [key, alpha] : config.alpha_pattern) check(key, "alpha_pattern");
}

/// Every module must have the rank r, or if `in_blocks` and fused, r for each of its layers; all
/// must have the same scale.
void check_patterns(const PeftConfig& config, const std::vector<AdaptedModule>& modules,
                    bool in_blocks, Complaints& complaints) {
  constexpr double kWithin = 1e-6;
  const double scale = config.alpha / (config.rank_scaled ? std::sqrt(config.rank) : config.rank);
  for (const AdaptedModule& module : modules) {
    const Dim parts = in_blocks && module.is_fused() ? static_cast<Dim>(module.layers.size()) : 1;
    complaints.unless(config.rank_of(module) == parts * config.rank,
                      fmt::format("rank_pattern gives {} the rank {} beside r {}: here all "
                                  "adapters have one rank",
                                  module.name, config.rank_of(module), config.rank));
    complaints.unless(
        std::abs(config.scale_of(module) - scale) <= kWithin * std::abs(scale),
        fmt::format("alpha_pattern gives {} the scale {} beside {}: here all adapters "
                    "have one scale",
                    module.name, config.scale_of(module), scale));
  }
}

void check_shapes(const PeftConfig& config, const io::SafetensorsReader& reader,
                  const std::vector<AdaptedModule>& modules, Complaints& complaints) {
  for (const AdaptedModule& module : modules) {
    const Shape a = {config.rank_of(module), module.inputs};
    const Shape b = {module.outputs(), config.rank_of(module)};
    complaints.unless(has(reader, module.a(), a) && has(reader, module.b(), b),
                      fmt::format("{} must have lora_A {} and lora_B {}: they are missing or of "
                                  "another shape, as those of another model would be",
                                  module.name, a.str(), b.str()));
  }
}

/// A module that only some blocks have an adapter for, or none.
void check_blocks(const std::vector<AdaptedModule>& all, const std::vector<AdaptedModule>& modules,
                  Complaints& complaints) {
  std::set<std::string> there;
  std::set<std::string> partly;
  for (const AdaptedModule& module : modules) there.insert(module.name);
  for (const AdaptedModule& module : modules) {
    for (const AdaptedModule& other : all) {
      if (other.target() == module.target() && !there.contains(other.name)) {
        partly.insert(other.name);
      }
    }
  }
  complaints.unless(
      partly.empty(),
      "here all blocks have the same adapters, and there is none for " + some(partly));
  complaints.unless(!modules.empty(),
                    "there is no adapter for a linear layer of the base's blocks");
}

/// True if B is zero outside of the blocks on its diagonal, a block for each layer.
bool is_block_diagonal(CView b, const AdaptedModule& module, Dim rank) {
  const Dim width = b.shape()[1];
  const float* row = b.data<float>();
  for (std::size_t i = 0; i < module.layers.size(); ++i) {
    for (Dim r = 0; r < module.layers[i].outputs; ++r, row += width) {
      for (Dim column = 0; column < width; ++column) {
        if (column / rank != static_cast<Dim>(i) && row[column] != 0) return false;
      }
    }
  }
  return true;
}

/// A parameter and its two cleared moments.
void add_slabs(std::vector<io::Slab>& slabs, const std::string& name, CView values,
               const std::vector<float>& zeros) {
  const Shape& shape = values.shape();
  const std::string bare = name.substr(name.find('/') + 1);
  const CView cleared(zeros.data(), DType::f32, Device::cpu, shape);
  slabs.push_back({name, shape, Hyperslab::whole(shape), values});
  slabs.push_back({"optimizer/exp_avg/" + bare, shape, Hyperslab::whole(shape), cleared});
  slabs.push_back({"optimizer/exp_avg_sq/" + bare, shape, Hyperslab::whole(shape), cleared});
}

}  // namespace

bool is_peft_folder(const std::string& folder) { return std::filesystem::exists(folder + kConfig); }

PeftFolder::PeftFolder(std::string folder, const model::ModelSpec& base)
    : folder_(std::move(folder)), reader_(open(folder_)) {
  Complaints complaints;
  const std::string file = folder_ + kConfig;
  const PeftConfig config =
      read_peft_config(io::read_text_file(file, kMostAdapterConfigBytes), file, complaints);
  const std::vector<AdaptedModule> all = modules_of(base, reader_);
  std::set<std::string> unknown;
  for (const auto& [name, entry] : reader_.tensors()) unknown.insert(name);
  for (const AdaptedModule& module : all) {
    if (unknown.erase(module.a()) + unknown.erase(module.b()) > 0) modules_.push_back(module);
  }
  complaints.unless(unknown.empty(),
                    "tensors that are no adapters of the base's blocks: " + some(unknown));
  check_names(config, all, complaints);
  check_blocks(all, modules_, complaints);
  in_blocks_ = std::ranges::any_of(modules_, [&](const AdaptedModule& module) {
    return module.is_fused() && config.rank_of(module) != config.rank;
  });
  check_patterns(config, modules_, in_blocks_, complaints);
  check_shapes(config, reader_, modules_, complaints);
  complaints.raise(ExitCode::checkpoint, folder_ + ": these adapters cannot be imported");
  adapter_.rank = config.rank;
  adapter_.alpha = config.alpha;
  adapter_.rank_scaled = config.rank_scaled;
  adapter_.dropout = config.dropout;
  find_targets(all, static_cast<bool>(base.experts));
}

PeftFolder::~PeftFolder() = default;

/// Layers whose A is zero in all blocks have no adapter: export_peft() leaves them zero.
std::vector<bool> PeftFolder::used_layers(const AdaptedModule& module) const {
  std::vector<bool> used(module.layers.size(), true);
  if (!in_blocks_ || !module.is_fused()) return used;
  const Dim rank = adapter_.rank * static_cast<Dim>(module.layers.size());
  const Tensor b = matrix(reader_, module.b(), {module.outputs(), rank});
  if (!is_block_diagonal(b.view(), module, adapter_.rank)) {
    throw Error(
        ExitCode::checkpoint,
        fmt::format("{}: these adapters cannot be imported: {} has the rank {} beside r {}, "
                    "and lora_B has values outside of the blocks on its diagonal",
                    folder_, module.name, rank, adapter_.rank));
  }
  const Tensor a = matrix(reader_, module.a(), {rank, module.inputs});
  for (std::size_t i = 0; i < used.size(); ++i) {
    const auto rows = a.view().slice(static_cast<Dim>(i) * adapter_.rank, adapter_.rank);
    used[i] = std::ranges::any_of(rows.span<float>(), [](float value) { return value != 0; });
  }
  return used;
}

void PeftFolder::find_targets(const std::vector<AdaptedModule>& all, bool has_experts) {
  std::set<nn::AdapterTarget> found;
  const auto targets_of = [](const AdaptedLayer& layer, auto& into) {
    for (const nn::AdapterTarget target : nn::kAdapterTargets) {
      if (layer.name.ends_with(name_of(target))) into.insert(target);
    }
  };
  for (const AdaptedModule& module : modules_) {
    const std::vector<bool> used = used_layers(module);
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) targets_of(module.layers[i], found);
    }
  }
  std::set<nn::AdapterTarget> possible;
  for (const AdaptedModule& module : all) {
    for (const AdaptedLayer& layer : module.layers) targets_of(layer, possible);
  }
  adapter_.targets.assign(found.begin(), found.end());
  if (has_experts && !found.empty() && adapter_.is_of_mlp()) {
    throw Error(ExitCode::checkpoint,
                folder_ +
                    ": these adapters cannot be imported: of the feed-forward networks it has "
                    "only those without experts");
  }
  // A deck says all by naming none; with experts that is more than a folder has.
  if (found == possible && !has_experts) adapter_.targets.clear();
}

/// A layer's adapter.
struct PeftFolder::Layer {
  AdaptedLayer names;
  Tensor a;  ///< (rank, inputs)
  Tensor b;  ///< (outputs, rank)
};

/// Layer `index` of a module.
PeftFolder::Layer PeftFolder::split(const AdaptedModule& module, std::size_t index, Dim rank,
                                    CView a, CView b) {
  const AdaptedLayer& layer = module.layers[index];
  const bool in_blocks = a.shape()[0] != rank;
  const Dim first = in_blocks ? static_cast<Dim>(index) * rank : 0;
  Dim row = 0;
  for (std::size_t i = 0; i < index; ++i) row += module.layers[i].outputs;
  Layer parts = {layer, Tensor(Device::cpu, DType::f32, {rank, module.inputs}),
                 Tensor(Device::cpu, DType::f32, {layer.outputs, rank})};
  std::copy_n(a.data<float>() + first * module.inputs, rank * module.inputs,
              parts.a.view().data<float>());
  const Dim width = b.shape()[1];
  for (Dim r = 0; r < layer.outputs; ++r) {
    std::copy_n(b.data<float>() + (row + r) * width + first, rank,
                parts.b.view().data<float>() + r * rank);
  }
  return parts;
}

/// The adapters of all layers as ours.
std::vector<PeftFolder::Layer> PeftFolder::read_layers() const {
  std::vector<Layer> layers;
  for (const AdaptedModule& module : modules_) {
    const bool blocks = in_blocks_ && module.is_fused();
    const Dim rank = adapter_.rank * (blocks ? static_cast<Dim>(module.layers.size()) : 1);
    const Tensor a = matrix(reader_, module.a(), {rank, module.inputs});
    const Tensor b = matrix(reader_, module.b(), {module.outputs(), rank});
    for (std::size_t i = 0; i < module.layers.size(); ++i) {
      if (!adapter_.applies_to(module.layers[i].name)) continue;
      layers.push_back(split(module, i, adapter_.rank, a.view(), b.view()));
    }
  }
  return layers;
}

void PeftFolder::import(const std::string& directory, io::CheckpointMeta meta) const {
  if (!io::list_checkpoints(directory).empty()) {
    throw Error(ExitCode::storage,
                directory + ": there are checkpoints already; choose another directory");
  }
  const std::vector<Layer> layers = read_layers();
  Dim largest = 0;
  Dim elements = 0;
  for (const Layer& layer : layers) {
    largest = std::max({largest, layer.a.view().numel(), layer.b.view().numel()});
    elements += layer.a.view().numel() + layer.b.view().numel();
  }
  const std::vector<float> zeros(static_cast<std::size_t>(largest), 0.0F);
  std::vector<io::Slab> slabs;
  for (const Layer& layer : layers) {
    add_slabs(slabs, layer.names.a(), layer.a.view(), zeros);
    add_slabs(slabs, layer.names.b(), layer.b.view(), zeros);
  }
  if (const std::string name = io::first_not_finite(slabs); !name.empty()) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {} would hold values that are not finite; the adapter is damaged",
                            folder_, name));
  }
  meta.layout = "imported from " + folder_;
  meta.version = version() + " (" + commit() + ")";
  io::CheckpointParts checkpoint(directory, std::move(meta),
                                 3 * sizeof(float) * static_cast<std::uint64_t>(elements));
  checkpoint.add(slabs);
  checkpoint.commit();
}

}  // namespace hyperslab::interop
