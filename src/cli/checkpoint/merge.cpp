// SPDX-License-Identifier: Apache-2.0
#include "merge.hpp"

#include <fmt/format.h>

#include <vector>

#include "exchange.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/version.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "hyperslab/train/initial.hpp"
#include "hyperslab/train/setup.hpp"
#include "stored.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::string_view kModel = "model/";
constexpr std::string_view kWeight = ".weight";
constexpr Dim kPartElements = 64 << 20;  // 256 MiB of f32

Tensor read(const io::CheckpointReader& reader, const std::string& name) {
  Tensor out(Device::cpu, DType::f32, reader.tensors().at(name).global_shape);
  const io::SlabTarget target = {name, out.view().shape(), Hyperslab::whole(out.view().shape()),
                                 out.view()};
  reader.read({&target, 1});
  return out;
}

/// W += scale B A with W: (C_out, C_in), A: (rank, C_in), B: (C_out, rank); sums in double.
void fold(View weight, CView a, CView b, double scale) {
  const auto [outputs, inputs] = weight.dims<2>("merge weight");
  const auto [rank, columns] = a.dims<2>("merge lora_A");
  require_shape(a, {rank, inputs}, "merge lora_A");
  require_shape(b, {outputs, rank}, "merge lora_B");
  std::vector<double> sum(static_cast<std::size_t>(columns));
  for (Dim row = 0; row < outputs; ++row) {
    std::ranges::fill(sum, 0.0);
    for (Dim r = 0; r < rank; ++r) {
      const double factor = scale * b.data<float>()[row * rank + r];
      const float* values = a.data<float>() + r * inputs;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * values[i];
    }
    float* out = weight.data<float>() + row * inputs;
    for (std::size_t i = 0; i < sum.size(); ++i) out[i] = static_cast<float>(out[i] + sum[i]);
  }
}

/// Adapters, the deck of their run, and their base.
struct Merge {
  io::CheckpointReader adapters;
  train::Config config;
  io::CheckpointReader base;
};

/// The path of the base: --base, else the deck's.
std::string base_path(const Arguments& args, const io::CheckpointReader& reader,
                      const train::Config& config) {
  if (args.has("base")) return args.get<std::string>("base");
  if (!config.checkpoint.initial.empty()) {
    return found_path(config.checkpoint.initial, stored_deck(reader), config);
  }
  throw Error(ExitCode::usage,
              reader.folder() +
                  ": its adapters were trained on random weights (checkpoint.initial is null), "
                  "which no checkpoint holds: there is nothing to merge into");
}

Merge open(const Arguments& args) {
  io::CheckpointReader adapters = trained_weights(args, only_folder(args));
  if (!adapters.meta().base_fingerprint) {
    throw Error(ExitCode::checkpoint,
                adapters.folder() + ": it holds a whole model, there is nothing to merge");
  }
  train::Config config = as_stored(stored_deck(adapters));
  const std::string path = base_path(args, adapters, config);
  io::CheckpointReader base(path);
  train::require_whole_model(base);
  train::require_same_model(base.meta(), config.model, base.folder());
  train::require_base(adapters, io::parameter_fingerprint(base), path);
  return {std::move(adapters), std::move(config), std::move(base)};
}

/// The base's tensor with the adapter of its layer, if it has one.
Tensor merged(const Merge& merge, const std::string& name) {
  Tensor out = read(merge.base, name);
  if (!name.ends_with(kWeight)) return out;
  const std::string layer = name.substr(0, name.size() - kWeight.size());
  if (!merge.adapters.tensors().contains(layer + ".lora_A.weight")) return out;
  const Tensor a = read(merge.adapters, layer + ".lora_A.weight");
  const Tensor b = read(merge.adapters, layer + ".lora_B.weight");
  fold(out.view(), a.view(), b.view(), merge.config.adapter.scale());
  return out;
}

/// The metadata of the merged checkpoint: a trained model without adapters.
io::CheckpointMeta meta_of(const Merge& merge) {
  const io::CheckpointMeta& was = merge.adapters.meta();
  train::Config config = merge.config;
  config.adapter = {};
  config.model.frozen_format = param::StorageFormat::compute;  // only bases have one
  config.checkpoint.initial.clear();
  io::CheckpointMeta meta;
  meta.step = was.step;
  meta.samples_seen = was.samples_seen;
  meta.tokens_seen = was.tokens_seen;
  meta.wall_seconds = was.wall_seconds;
  meta.data_fingerprint = was.data_fingerprint;
  meta.model = was.model;
  meta.order = was.order;
  meta.layout = "merged from " + merge.adapters.folder();
  meta.deck = deck::to_yaml(config);
  meta.started_in = was.started_in;
  meta.version = version() + " (" + commit() + ")";
  const std::string vocabulary = merge.adapters.vocabulary_path();
  if (!vocabulary.empty()) meta.vocabulary = io::read_vocabulary_files(vocabulary);
  return meta;
}

/// Writes every parameter, few of them in memory at a time.
void write(const Merge& merge, const std::string& output) {
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  for (const auto& [name, entry] : merge.base.tensors()) {
    if (!name.starts_with(kModel)) continue;
    names.push_back(name);
    bytes += sizeof(float) * static_cast<std::uint64_t>(entry.global_shape.numel());
  }
  io::CheckpointParts checkpoint(output, meta_of(merge), bytes);
  std::vector<Tensor> memory;
  std::vector<io::Slab> slabs;
  Dim elements = 0;
  for (const std::string& name : names) {
    memory.push_back(merged(merge, name));
    const CView values = memory.back().view();
    slabs.push_back({name, values.shape(), Hyperslab::whole(values.shape()), values});
    elements += values.numel();
    if (elements < kPartElements && name != names.back()) continue;
    checkpoint.add(slabs);
    slabs.clear();
    memory.clear();
    elements = 0;
  }
  checkpoint.commit();
}

}  // namespace

void merge_checkpoint(const Arguments& args) {
  const std::string output = output_of(args);
  require_new(output);
  const Merge merge = open(args);
  write(merge, output);
  fmt::print(
      "{0}: step {1} of {2} merged into {3}, a whole model; try: hyperslab generate --checkpoint "
      "{0}\n",
      output, merge.adapters.meta().step, merge.adapters.folder(), merge.base.folder());
}

}  // namespace hyperslab::cli
