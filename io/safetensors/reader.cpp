// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "safetensors/header.hpp"
#include "safetensors/strict_json.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockElements = 1 << 18;

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Tensor -> file name of an index.
std::map<std::string, std::string> read_index(const std::string& path) {
  const nlohmann::json index = strict_json(foreign_text(path, kMostHeaderBytes), path);
  const auto found = index.find("weight_map");
  if (found == index.end() || !found->is_object() || found->empty()) {
    throw Error(ExitCode::checkpoint, path + ": expected a weight_map of tensors to files");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      throw Error(
          ExitCode::checkpoint,
          fmt::format("{}: tensor {}: expected the name of a file in the same folder, found {}",
                      path, shown(tensor), shown(file.dump())));
    }
    map.emplace(tensor, name);
  }
  return map;
}

SafetensorsEntries read_parts(const std::string& folder, const std::string& index) {
  const std::map<std::string, std::string> map = read_index(index);
  std::map<std::string, SafetensorsEntries> files;
  SafetensorsEntries tensors;
  for (const auto& [tensor, file] : map) {
    const auto [known, is_new] = files.try_emplace(file);
    if (is_new) known->second = read_header((fs::path(folder) / file).string());
    const auto found = known->second.find(tensor);
    if (found == known->second.end()) {
      throw Error(ExitCode::checkpoint,
                  fmt::format("{}: tensor {} is not in {}, where the index has it", index,
                              shown(tensor), file));
    }
    tensors.insert(*found);
  }
  return tensors;
}

SafetensorsEntries read_folder(const std::string& folder) {
  const std::string single = (fs::path(folder) / "model.safetensors").string();
  const std::string index = single + ".index.json";
  if (is_file(single)) return read_header(single);
  if (is_file(index)) return read_parts(folder, index);
  const bool pickled = is_file((fs::path(folder) / "pytorch_model.bin").string()) ||
                       is_file((fs::path(folder) / "pytorch_model.bin.index.json").string());
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: there is neither model.safetensors nor its index{}", folder,
                          pickled ? "; pytorch_model.bin is not read, save the model with "
                                    "save_pretrained(..., safe_serialization=True), or timm's "
                                    "save_for_hf(..., safe_serialization=True)"
                                  : ""));
}

template <class T>
void widen(const storage::File& file, const SafetensorsEntry& entry, std::uint64_t first,
           std::span<float> out) {
  std::vector<T> block(std::min(out.size(), kBlockElements));
  std::uint64_t offset = entry.offset + first * sizeof(T);
  while (!out.empty()) {
    const std::size_t some = std::min(out.size(), block.size());
    if (file.read_at(offset, block.data(), some * sizeof(T)) < some * sizeof(T)) {
      throw Error(ExitCode::checkpoint, entry.file + ": it was cut while it was being read");
    }
    std::ranges::transform(std::span(block).first(some), out.begin(),
                           [](T value) { return to_float(value); });
    out = out.subspan(some);
    offset += some * sizeof(T);
  }
}

void read_f32(const storage::File& file, const SafetensorsEntry& entry, std::uint64_t first,
              std::span<float> out) {
  const std::uint64_t offset = entry.offset + first * sizeof(float);
  if (file.read_at(offset, out.data(), out.size_bytes()) < out.size_bytes()) {
    throw Error(ExitCode::checkpoint, entry.file + ": it was cut while it was being read");
  }
}

/// The elements of a tensor from `first` on, as many as `out` takes.
void read_values(const storage::File& file, const std::string& name, const SafetensorsEntry& entry,
                 std::uint64_t first, std::span<float> out) {
  if (entry.dtype == "F32") return read_f32(file, entry, first, out);
  if (entry.dtype == "F16") return widen<f16>(file, entry, first, out);
  if (entry.dtype == "BF16") return widen<bf16>(file, entry, first, out);
  throw Error(
      ExitCode::checkpoint,
      fmt::format("{}: tensor {} is {}, expected F32, F16 or BF16; save the model in one of "
                  "these",
                  entry.file, shown(name), entry.dtype));
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  std::error_code error;
  tensors_ = fs::is_directory(path, error) ? read_folder(path) : read_header(path);
}

const SafetensorsEntry& SafetensorsReader::entry(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: there is no tensor {}", path_, shown(name)));
  }
  return found->second;
}

void SafetensorsReader::read(const std::string& name, View out) const {
  const SafetensorsEntry& tensor = entry(name);
  if (!std::ranges::equal(tensor.shape, out.shape().dims())) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: tensor {} has shape ({}), expected {}", tensor.file, shown(name),
                            fmt::join(tensor.shape, ", "), out.shape().str()));
  }
  read_values(storage::File::open(tensor.file), name, tensor, 0, out.span<float>());
}

bool SafetensorsReader::are_equal(const std::string& a, const std::string& b) const {
  const SafetensorsEntry& first = entry(a);
  const SafetensorsEntry& second = entry(b);
  if (first.shape != second.shape) return false;
  std::uint64_t elements = 1;
  for (const Dim dim : first.shape) elements *= static_cast<std::uint64_t>(dim);
  const storage::File first_file = storage::File::open(first.file);
  const storage::File second_file = storage::File::open(second.file);
  std::vector<float> block(std::min<std::uint64_t>(elements, kBlockElements));
  std::vector<float> other(block.size());
  for (std::uint64_t done = 0; done < elements;) {
    const auto some = std::min<std::uint64_t>(elements - done, block.size());
    const auto x = std::span(block).first(some);
    const auto y = std::span(other).first(some);
    read_values(first_file, a, first, done, x);
    read_values(second_file, b, second, done, y);
    if (!std::ranges::equal(x, y)) return false;
    done += some;
  }
  return true;
}

}  // namespace hyperslab::io
