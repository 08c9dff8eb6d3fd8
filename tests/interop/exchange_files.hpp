// SPDX-License-Identifier: Apache-2.0
// Checkpoints and folders of small models, for tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "exchange_config.hpp"
#include "exchange_names.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/interop/exchange.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"
#include "io/safetensors/files.hpp"
#include "support/tensors.hpp"

namespace hyperslab::interop {

/// A value that says which tensor and element it is.
inline float value_of(const std::string& name, Dim element) {
  return static_cast<float>(std::hash<std::string>()(name) % 4096) +
         static_cast<float>(element) / 1024;
}

/// A checkpoint of our tensors of a model.
inline void write_checkpoint(const model::ModelSpec& spec, const std::string& directory) {
  io::CheckpointMeta meta;
  meta.step = 7;
  io::CheckpointParts checkpoint(directory, meta, 1 << 20);
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    for (const NamedShape& ours : tensor.ours) {
      Tensor values(Device::cpu, DType::f32, ours.shape);
      for (Dim i = 0; i < ours.shape.numel(); ++i) {
        values.view().data<float>()[i] = value_of(ours.name, i);
      }
      const io::Slab slab = {ours.name, ours.shape, Hyperslab::whole(ours.shape), values.view()};
      checkpoint.add(std::span(&slab, 1));
    }
  }
  checkpoint.commit();
}

inline void export_small(const model::ModelSpec& spec, const std::string& directory,
                         const std::string& output,
                         std::uint64_t shard_bytes = io::ModelFolder::kShardBytes) {
  const io::CheckpointReader reader(directory);
  ExportOptions options;
  options.output = output;
  options.shard_bytes = shard_bytes;
  export_huggingface(spec, reader, options);
}

inline std::vector<double> tensor_in(const std::string& folder, const std::string& name,
                                     const Shape& shape) {
  Tensor out(Device::cpu, DType::f32, shape);
  io::SafetensorsReader(folder).read(name, out.view());
  return test::to_doubles(out.view());
}

inline io::CheckpointMeta meta_of(const std::string& deck) {
  io::CheckpointMeta meta;
  meta.deck = deck;
  return meta;
}

/// Exports, imports and compares every tensor of ours.
inline void expect_round_trip(const model::ModelSpec& spec, std::uint64_t shard_bytes) {
  const test::TempFolder temp;
  const std::string folder = temp.path() + "/hf";
  write_checkpoint(spec, temp.path() + "/c");
  export_small(spec, temp.path() + "/c", folder, shard_bytes);
  model::ModelSpec described = huggingface_model(folder);
  described.init_std = spec.init_std;
  EXPECT_EQ(described, spec);

  import_huggingface(folder, described, temp.path() + "/i", meta_of("the deck"));

  const io::CheckpointReader reader(temp.path() + "/i");
  EXPECT_THAT(reader.verify(), ::testing::IsEmpty());
  EXPECT_EQ(reader.meta().step, 0);
  EXPECT_EQ(reader.meta().adam_step, 0);
  EXPECT_EQ(reader.meta().deck, "the deck");
  std::size_t count = 0;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    for (const NamedShape& ours : tensor.ours) {
      const std::string name = ours.name.substr(ours.name.find('/') + 1);
      for (const char* prefix : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
        Tensor out(Device::cpu, DType::f32, ours.shape);
        const io::SlabTarget target = {prefix + name, ours.shape, Hyperslab::whole(ours.shape),
                                       out.view()};
        reader.read(std::span(&target, 1));
        const bool moment = prefix[0] == 'o';
        for (Dim i = 0; i < ours.shape.numel(); ++i) {
          ASSERT_EQ(out.view().data<float>()[i], moment ? 0.0F : value_of(ours.name, i)) << name;
        }
        ++count;
      }
    }
  }
  EXPECT_EQ(reader.tensors().size(), count);
}

/// A folder with the model's config.json and these tensors of zeros, into which `fill` puts
/// other values by name.
inline std::string folder_filled(const test::TempFolder& temp, const model::ModelSpec& spec,
                                 const std::map<std::string, Shape>& tensors,
                                 const std::function<void(const std::string&, View)>& fill) {
  std::vector<io::SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const auto& [name, shape] : tensors) specs.push_back({name, shape});
  io::ModelFolder folder(temp.path() + "/hf");
  folder.write_text("config.json", config_json(spec, DType::f32, {}));
  folder.write_tensors(specs, DType::f32, [&](std::size_t index, View out) {
    std::memset(out.raw(), 0, out.bytes());
    fill(specs[index].name, out);
  });
  folder.commit();
  return temp.path() + "/hf";
}

inline std::string folder_with(const test::TempFolder& temp, const model::ModelSpec& spec,
                               const std::map<std::string, Shape>& tensors) {
  return folder_filled(temp, spec, tensors, [](const std::string&, View) {});
}

inline std::map<std::string, Shape> tensors_of(const model::ModelSpec& spec) {
  std::map<std::string, Shape> tensors;
  for (const ExchangedTensor& tensor : exchanged_tensors(spec)) {
    tensors.emplace(tensor.name, tensor.shape);
  }
  return tensors;
}

}  // namespace hyperslab::interop
