// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoint/storage.hpp"
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
    throw Error(ExitCode::checkpoint, path + ": wanted a weight_map of tensors to files");
  }
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : found->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      throw Error(
          ExitCode::checkpoint,
          fmt::format("{}: tensor {}: wanted the name of a file in the same folder, found {}", path,
                      shown(tensor), shown(file.dump())));
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
                                    "save_pretrained(..., safe_serialization=True)"
                                  : ""));
}

template <class T>
void widen(const storage::File& file, const SafetensorsEntry& entry, std::span<float> out) {
  std::vector<T> block(std::min(out.size(), kBlockElements));
  std::uint64_t offset = entry.offset;
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

void read_f32(const storage::File& file, const SafetensorsEntry& entry, std::span<float> out) {
  if (file.read_at(entry.offset, out.data(), out.size_bytes()) < out.size_bytes()) {
    throw Error(ExitCode::checkpoint, entry.file + ": it was cut while it was being read");
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  std::error_code error;
  tensors_ = fs::is_directory(path, error) ? read_folder(path) : read_header(path);
}

void SafetensorsReader::read(const std::string& name, View out) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: there is no tensor {}", path_, shown(name)));
  }
  const SafetensorsEntry& entry = found->second;
  if (!std::ranges::equal(entry.shape, out.shape().dims())) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: tensor {} has shape ({}), wanted {}", entry.file, shown(name),
                            fmt::join(entry.shape, ", "), out.shape().str()));
  }
  const storage::File file = storage::File::open(entry.file);
  if (entry.dtype == "F32") return read_f32(file, entry, out.span<float>());
  if (entry.dtype == "F16") return widen<f16>(file, entry, out.span<float>());
  if (entry.dtype == "BF16") return widen<bf16>(file, entry, out.span<float>());
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: tensor {} is {}, wanted F32, F16 or BF16; save the model in one of "
                          "these",
                          entry.file, shown(name), entry.dtype));
}

}  // namespace hyperslab::io
