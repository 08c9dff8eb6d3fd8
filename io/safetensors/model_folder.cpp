// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "files/storage.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/safetensors.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::size_t kExportBlockElements = 1 << 18;
constexpr std::size_t kCopyBytes = 1 << 20;

const char* header_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    default: break;
  }
  throw Error(ExitCode::internal, "models are written as f32, bf16 or f16");
}

std::uint64_t bytes_of(const SafetensorsSpec& tensor, DType dtype) {
  return static_cast<std::uint64_t>(tensor.shape.numel()) * size_of(dtype);
}

/// Tensors [first, last) of one file.
struct Shard {
  std::size_t first = 0;
  std::size_t last = 0;
  std::string file;
};

std::vector<Shard> cut_into_shards(std::span<const SafetensorsSpec> tensors, DType dtype,
                                   std::uint64_t shard_bytes) {
  std::vector<Shard> shards(1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t more = bytes_of(tensors[i], dtype);
    if (bytes > 0 && bytes + more > shard_bytes) {
      shards.push_back({i, i, ""});
      bytes = 0;
    }
    bytes += more;
    shards.back().last = i + 1;
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

/// The length and the JSON, padded so that the data begin at a multiple of 8.
std::string header_of(std::span<const SafetensorsSpec> tensors, DType dtype) {
  ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};  // which transformers looks for
  std::uint64_t offset = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    const std::uint64_t end = offset + bytes_of(tensor, dtype);
    const auto dims = tensor.shape.dims();
    header[tensor.name] = {{"dtype", header_name(dtype)},
                           {"shape", std::vector<Dim>(dims.begin(), dims.end())},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

std::string index_of(std::span<const SafetensorsSpec> tensors, std::span<const Shard> shards,
                     DType dtype) {
  std::uint64_t total = 0;
  ordered_json map;
  for (const Shard& shard : shards) {
    for (std::size_t i = shard.first; i < shard.last; ++i) {
      map[tensors[i].name] = shard.file;
      total += bytes_of(tensors[i], dtype);
    }
  }
  ordered_json index;
  index["metadata"] = {{"total_size", total}};
  index["weight_map"] = map;
  return index.dump(2) + "\n";
}

bf16 narrow(float value, bf16) { return to_bf16(value); }
f16 narrow(float value, f16) { return to_f16(value); }

/// Writes the values in the dtype T; throws if a finite value becomes infinite.
template <class T>
void write_narrowed(storage::File& file, std::uint64_t offset, const SafetensorsSpec& tensor,
                    std::span<const float> values) {
  std::vector<T> block(std::min(values.size(), kExportBlockElements));
  while (!values.empty()) {
    const std::size_t some = std::min(values.size(), block.size());
    for (std::size_t i = 0; i < some; ++i) {
      block[i] = narrow(values[i], T());
      if (std::isinf(to_float(block[i])) && std::isfinite(values[i])) {
        throw Error(ExitCode::usage,
                    fmt::format("tensor {} holds {}, which is beyond the range of {}; export with "
                                "--dtype fp32 or bf16",
                                tensor.name, values[i], name_of(dtype_of<T>)));
      }
    }
    file.write_at(offset, block.data(), some * sizeof(T));
    values = values.subspan(some);
    offset += some * sizeof(T);
  }
}

void write_values(storage::File& file, std::uint64_t offset, const SafetensorsSpec& tensor,
                  DType dtype, std::span<const float> values) {
  if (dtype == DType::bf16) return write_narrowed<bf16>(file, offset, tensor, values);
  if (dtype == DType::f16) return write_narrowed<f16>(file, offset, tensor, values);
  file.write_at(offset, values.data(), values.size_bytes());
}

void require_room(const std::string& path, const std::string& what, std::uint64_t bytes) {
  const std::uint64_t free = storage::free_bytes(path);
  if (free >= bytes) return;
  throw Error(
      ExitCode::storage,
      fmt::format("{}: {} needs {} bytes and {} are free; make room or choose another folder", path,
                  what, bytes, free));
}

}  // namespace

ModelFolder::ModelFolder(std::string path) : path_(std::move(path)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  std::error_code error;
  const bool is_empty_folder = fs::is_directory(path_, error) && fs::is_empty(path_, error);
  if (fs::exists(path_, error) && !is_empty_folder) {
    throw Error(ExitCode::storage,
                path_ + ": it exists already and is no empty folder; remove it or choose another");
  }
  const std::string temporary = fmt::format("{}.tmp.{}", path_, ::getpid());
  storage::remove_tree(temporary);
  storage::make_folder(temporary);
  temporary_ = temporary;
}

ModelFolder::~ModelFolder() {
  if (temporary_.empty()) return;
  try {
    storage::remove_tree(temporary_);
  } catch (const Error& failed) {
    log::warn(failed.what());
  }
}

void ModelFolder::write_text(const std::string& name, const std::string& text) {
  storage::write_text(temporary_ + "/" + name, text);
}

void ModelFolder::copy_file(const std::string& from, const std::string& name) {
  const storage::File source = storage::File::open(from);
  require_room(temporary_, from, source.size());
  storage::File file = storage::File::create(temporary_ + "/" + name);
  std::vector<char> block(kCopyBytes);
  std::uint64_t done = 0;
  while (const std::size_t some = source.read_at(done, block.data(), block.size())) {
    file.write_at(done, block.data(), some);
    done += some;
  }
  file.sync();
  file.close();
}

void ModelFolder::write_file(const std::string& name, std::span<const SafetensorsSpec> tensors,
                             DType dtype, const Fill& fill) {
  std::uint64_t total = 0;
  Dim largest = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    total += bytes_of(tensor, dtype);
    largest = std::max(largest, tensor.shape.numel());
  }
  require_room(temporary_, name, total);
  Tensor memory(Device::cpu, DType::f32, {largest});
  storage::File file = storage::File::create(temporary_ + "/" + name);
  const std::string header = header_of(tensors, dtype);
  file.write_at(0, header.data(), header.size());
  std::uint64_t offset = header.size();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const View values = memory.view().slice(0, tensors[i].shape.numel());
    fill(i, values.reshaped(tensors[i].shape));
    write_values(file, offset, tensors[i], dtype, values.span<float>());
    offset += bytes_of(tensors[i], dtype);
  }
  file.sync();
  file.close();
}

void ModelFolder::write_tensors(std::span<const SafetensorsSpec> tensors, DType dtype,
                                const Fill& fill, std::uint64_t shard_bytes) {
  const std::vector<Shard> shards = cut_into_shards(tensors, dtype, shard_bytes);
  std::uint64_t total = 0;
  for (const SafetensorsSpec& tensor : tensors) total += bytes_of(tensor, dtype);
  require_room(temporary_, "the model", total);
  for (const Shard& shard : shards) {
    const auto mine = tensors.subspan(shard.first, shard.last - shard.first);
    write_file(shard.file, mine, dtype,
               [&](std::size_t index, View out) { fill(shard.first + index, out); });
  }
  if (shards.size() > 1) {
    write_text("model.safetensors.index.json", index_of(tensors, shards, dtype));
  }
}

void ModelFolder::commit() {
  storage::sync_folder(temporary_);
  storage::rename(temporary_, path_);
  temporary_.clear();
  storage::sync_folder(storage::parent_of(path_));
}

}  // namespace hyperslab::io
