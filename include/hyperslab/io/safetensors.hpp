// SPDX-License-Identifier: Apache-2.0
// The format of Hugging Face's model folders: an 8-byte little-endian header length, a JSON header
// that names dtype, shape and offset of every tensor, and their bytes
// (https://github.com/huggingface/safetensors).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/core/view.hpp"

namespace hyperslab::io {

/// One tensor as a header describes it; its bytes lie in the file, row-major and little-endian.
struct SafetensorsEntry {
  std::string file;
  std::string dtype;  ///< F32, F16, BF16, ..., as the header spells it
  std::vector<Dim> shape;
  std::uint64_t offset = 0;  ///< position of the first byte in the file
  std::uint64_t bytes = 0;
};

/// The tensors of one file or of a model folder; cheap until tensors are read.
class SafetensorsReader {
 public:
  /// `path` is a .safetensors file, or a folder with model.safetensors or, in parts,
  /// model.safetensors.index.json. Throws Error(checkpoint) that names file and tensor: missing
  /// files, a header longer than its file or than 100 MB, duplicate names, dtypes that are none,
  /// sizes that contradict shapes, bytes that two tensors claim or none does.
  explicit SafetensorsReader(const std::string& path);

  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  /// Fills `out` (CPU, f32) with a tensor of the same shape, widened from F32, F16 or BF16. Throws
  /// Error(checkpoint) that names file and tensor: missing, another dtype or shape, cut short.
  void read(const std::string& name, View out) const;
  /// True if two tensors have the same shape and, widened to f32, the same values. Throws as read()
  /// does.
  [[nodiscard]] bool are_equal(const std::string& a, const std::string& b) const;

 private:
  [[nodiscard]] const SafetensorsEntry& entry(const std::string& name) const;
  std::string path_;
  std::map<std::string, SafetensorsEntry> tensors_;
};

/// One tensor to write.
struct SafetensorsSpec {
  std::string name;
  Shape shape;
};

/// A model folder that appears whole or not at all: files go into `<path>.tmp.<process>` beside it,
/// are synced, and get their name in commit(). Without a commit the destructor removes them.
class ModelFolder {
 public:
  static constexpr std::uint64_t kShardBytes = 5'000'000'000;  ///< Hugging Face's own limit

  /// Throws Error(storage) if `path` exists and is no empty folder.
  explicit ModelFolder(std::string path);
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  ModelFolder(ModelFolder&&) = delete;
  ModelFolder& operator=(ModelFolder&&) = delete;
  ~ModelFolder();

  void write_text(const std::string& name, const std::string& text);
  /// Copies a file of any size in blocks, if there is room for it.
  void copy_file(const std::string& from, const std::string& name);

  /// Puts the values of tensor `index` into `out`: CPU, f32, of its shape.
  using Fill = std::function<void(std::size_t index, View out)>;
  /// Writes one file of the tensors, as write_tensors().
  void write_file(const std::string& name, std::span<const SafetensorsSpec> tensors, DType dtype,
                  const Fill& fill);
  /// Writes model.safetensors, or if the tensors have more than `shard_bytes` together,
  /// model-00001-of-0000N.safetensors of at most that (one tensor may be larger) and their index.
  /// `dtype`: f32, bf16 or f16. One tensor is in memory at a time. Throws Error(storage), and
  /// Error(usage) if a value is beyond the range of f16.
  void write_tensors(std::span<const SafetensorsSpec> tensors, DType dtype, const Fill& fill,
                     std::uint64_t shard_bytes = kShardBytes);
  void commit();

 private:
  std::string path_;
  std::string temporary_;  ///< empty after the commit
};

}  // namespace hyperslab::io
