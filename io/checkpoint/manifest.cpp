// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "checkpoint/dtypes.hpp"
#include "checkpoint/steps.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_problem.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;
using Piece = CheckpointReader::Piece;
using TensorEntry = CheckpointReader::TensorEntry;
using FileEntry = CheckpointReader::FileEntry;

constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 30;  // a piece takes some 200

std::string dump(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::uint32_t checksum(const json& value) {
  const std::string text = dump(value);
  return crc32c(text.data(), text.size());
}

json json_of(const Shape& shape) {
  return std::vector<Dim>(shape.dims().begin(), shape.dims().end());
}

Shape shape_of(const json& value) {
  const auto dims = value.get<std::vector<Dim>>();
  if (dims.size() > kMaxRank) throw std::invalid_argument("a shape of too many dimensions");
  Dim numel = 1;
  for (const Dim dim : dims) {
    if (dim < 0 || __builtin_mul_overflow(numel, std::max<Dim>(dim, 1), &numel)) {
      throw std::invalid_argument("a size that is not possible");
    }
  }
  return Shape(std::span<const Dim>(dims));
}

json json_of(const Piece& piece) {
  return {{"file", piece.file},
          {"dataset", piece.dataset},
          {"offset", json_of(piece.part.offset)},
          {"count", json_of(piece.part.count)},
          {"file_offset", piece.file_offset},
          {"crc32c", piece.crc32c}};
}

Piece piece_of(const json& value) {
  return {value.at("file"),
          value.at("dataset"),
          {shape_of(value.at("offset")), shape_of(value.at("count"))},
          value.at("file_offset"),
          value.at("crc32c")};
}

json json_of(const FileEntry& file) {
  json structure = json::array();
  for (const auto& part : file.structure) {
    structure.push_back({part.offset, part.bytes, part.crc32c});
  }
  return {{"name", file.name}, {"bytes", file.bytes}, {"structure", structure}};
}

FileEntry file_of(const json& value) {
  FileEntry file{value.at("name"), value.at("bytes"), {}};
  for (const json& part : value.at("structure")) {
    file.structure.push_back({part.at(0), part.at(1), part.at(2)});
  }
  return file;
}

json json_of(const std::vector<CheckpointReader::VocabularyEntry>& vocabulary) {
  json entries = json::array();
  for (const auto& [name, bytes, crc] : vocabulary) {
    entries.push_back({{"name", name}, {"bytes", bytes}, {"crc32c", crc}});
  }
  return entries;
}

/// Earlier programs kept none.
std::vector<CheckpointReader::VocabularyEntry> vocabulary_of(const json& value) {
  std::vector<CheckpointReader::VocabularyEntry> entries;
  for (const json& entry : value.value("vocabulary", json::array())) {
    entries.push_back({entry.at("name"), entry.at("bytes"), entry.at("crc32c")});
  }
  return entries;
}

json tables_of(const Manifest& manifest) {
  json tensors = json::object();
  for (const auto& [name, entry] : manifest.tensors) {
    json pieces = json::array();
    for (const Piece& piece : entry.pieces) pieces.push_back(json_of(piece));
    tensors[name] = {{"dtype", name_of(entry.dtype)},
                     {"global_shape", json_of(entry.global_shape)},
                     {"pieces", pieces}};
  }
  json files = json::array();
  for (const FileEntry& file : manifest.files) files.push_back(json_of(file));
  return {{"tensors", tensors}, {"files", files}};
}

DType dtype_of_tensor(const std::string& name, const json& tensor) {
  try {
    return storable_dtype(tensor.at("dtype").get<std::string>());
  } catch (const json::exception& error) {
    throw std::invalid_argument("tensor " + name + ": " + json_problem(error));
  } catch (const std::exception& error) {
    throw std::invalid_argument("tensor " + name + ": " + error.what());
  }
}

int needed_format(const Manifest& manifest) {
  int format = format_of(DType::f32);
  for (const auto& [name, entry] : manifest.tensors) {
    format = std::max(format, format_of(entry.dtype));
  }
  return format;
}

/// Adds the tensors and files of `value`.
void add_tables(Manifest& manifest, const json& value) {
  for (const auto& [name, tensor] : value.at("tensors").items()) {
    const Shape shape = shape_of(tensor.at("global_shape"));
    const DType dtype = dtype_of_tensor(name, tensor);
    TensorEntry& entry =
        manifest.tensors.try_emplace(name, TensorEntry{shape, dtype, {}}).first->second;
    if (!(entry.global_shape == shape)) {
      throw std::invalid_argument(fmt::format("tensor {} has the shapes {} and {}", name,
                                              entry.global_shape.str(), shape.str()));
    }
    if (entry.dtype != dtype) {
      throw std::invalid_argument(fmt::format("tensor {} has the dtypes {} and {}", name,
                                              name_of(entry.dtype), name_of(dtype)));
    }
    for (const json& piece : tensor.at("pieces")) entry.pieces.push_back(piece_of(piece));
  }
  for (const json& file : value.at("files")) manifest.files.push_back(file_of(file));
}

json json_of(const CheckpointMeta& meta) {
  json value = {{"step", meta.step},
                {"samples_seen", meta.samples_seen},
                {"tokens_seen", meta.tokens_seen},
                {"adam_step", meta.adam_step},
                {"skipped_steps", meta.skipped_steps},
                {"scales_loss", meta.scales_loss},
                {"loss_scale", meta.loss_scale},
                {"good_steps", meta.good_steps},
                {"wall_seconds", meta.wall_seconds},
                {"data_fingerprint", meta.data_fingerprint},
                {"model", meta.model},
                {"order", meta.order},
                {"layout", meta.layout},
                {"deck", meta.deck},
                {"deck_hash", fmt::format("{:016x}", name_hash(meta.deck))},
                {"version", meta.version},
                {"algorithms", meta.algorithms}};
  if (meta.base_fingerprint) {
    value["base_fingerprint"] = *meta.base_fingerprint;
    value["base_step"] = meta.base_step;
  }
  if (!meta.spikes.empty()) value["spikes"] = meta.spikes;
  if (!meta.started_in.empty()) value["started_in"] = meta.started_in;
  return value;
}

/// For manifests that do not say whether the run scaled its losses: runs that did not and imports
/// hold a scale of 1, as do scaled runs whose scale has fallen so far. Decks are kept as they are
/// written out, a key per line.
bool scaled_losses(const CheckpointMeta& meta) {
  const bool of_fp16 = meta.deck.find("\n  compute: fp16\n") != std::string::npos;
  return meta.loss_scale != 1 || (of_fp16 && meta.samples_seen > 0);
}

CheckpointMeta meta_of(const json& value) {
  CheckpointMeta meta;
  value.at("step").get_to(meta.step);
  value.at("samples_seen").get_to(meta.samples_seen);
  value.at("tokens_seen").get_to(meta.tokens_seen);
  value.at("adam_step").get_to(meta.adam_step);
  value.at("skipped_steps").get_to(meta.skipped_steps);
  value.at("loss_scale").get_to(meta.loss_scale);
  value.at("good_steps").get_to(meta.good_steps);
  value.at("wall_seconds").get_to(meta.wall_seconds);
  value.at("data_fingerprint").get_to(meta.data_fingerprint);
  value.at("model").get_to(meta.model);
  value.at("order").get_to(meta.order);
  value.at("layout").get_to(meta.layout);
  value.at("deck").get_to(meta.deck);
  value.at("version").get_to(meta.version);
  // Earlier programs did not write these:
  meta.algorithms = value.value("algorithms", value.value("products", ""));  // their old name
  meta.spikes = value.value("spikes", "");
  meta.started_in = value.value("started_in", "");
  meta.scales_loss = value.value("scales_loss", scaled_losses(meta));
  if (value.contains("base_fingerprint")) {
    meta.base_fingerprint = value.at("base_fingerprint").get<std::uint64_t>();
    meta.base_step = value.value("base_step", std::int64_t{0});
  }
  if (meta.step < 0 || meta.adam_step < 0 || meta.samples_seen < 0) {
    throw std::invalid_argument("a count below 0");
  }
  return meta;
}

/// Throws if a piece points outside of its tensor or file, so that readers need not look again.
void check_piece(const Manifest& manifest, const TensorEntry& entry, const Piece& piece,
                 const std::map<std::string, std::uint64_t>& sizes) {
  const std::string outside = problem_of(piece.part, entry.global_shape);
  if (!outside.empty()) throw std::invalid_argument(outside);
  const auto file = sizes.find(piece.file);
  if (file == sizes.end()) throw std::invalid_argument(piece.file + " is not in its list of files");
  const std::uint64_t bytes = bytes_of_part(piece.part, entry.dtype);
  if (piece.file_offset > file->second || bytes > file->second - piece.file_offset) {
    throw std::invalid_argument("a piece reaches beyond the end of " + piece.file);
  }
  if (piece.crc32c.size() != (bytes + manifest.block_bytes - 1) / manifest.block_bytes) {
    throw std::invalid_argument("a piece has another number of blocks than checksums");
  }
}

/// True if the name belongs to a file in the folder itself.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && name != "." && name != "..";
}

void check(const Manifest& manifest) {
  for (const auto& entry : manifest.vocabulary) {
    if (!is_plain_name(entry.name)) throw std::invalid_argument("a file name that is not possible");
  }
  if (manifest.block_bytes == 0 || manifest.block_bytes % sizeof(float) != 0 ||
      manifest.block_bytes > CheckpointReader::kBlockBytes) {
    throw std::invalid_argument("block_bytes is not possible");
  }
  std::map<std::string, std::uint64_t> sizes;
  for (const FileEntry& file : manifest.files) {
    if (!is_plain_name(file.name)) {
      throw std::invalid_argument("a file name that is not possible");
    }
    sizes[file.name] = file.bytes;
    for (const auto& part : file.structure) {
      if (part.offset > file.bytes || part.bytes > file.bytes - part.offset) {
        throw std::invalid_argument("a part reaches beyond the end of " + file.name);
      }
    }
  }
  for (const auto& [name, entry] : manifest.tensors) {
    for (const Piece& piece : entry.pieces) {
      try {
        check_piece(manifest, entry, piece, sizes);
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument("tensor " + name + ": " + error.what());
      }
    }
  }
}

/// True if there is a number with a fraction or an exponent, or one of more than 64 bits.
bool holds_fraction(const json& value) {
  if (value.is_structured()) return std::ranges::any_of(value, holds_fraction);
  return value.is_number_float();
}

/// Throws if a number that is to be whole is not: converting one beyond an integer's range has no
/// defined result.
void check_numbers(const json& value) {
  constexpr std::array<std::string_view, 2> kFractions = {"loss_scale", "wall_seconds"};
  for (const auto& [key, part] : value.items()) {
    if (std::ranges::find(kFractions, key) == kFractions.end() && holds_fraction(part)) {
      throw std::invalid_argument("a number in '" + key + "' is not whole or is too large");
    }
  }
}

Manifest parse(const std::string& text) {
  if (is_too_deep(text)) throw std::invalid_argument("its JSON is nested too deep");
  json value = json::parse(text);
  if (!value.is_object()) {
    throw std::invalid_argument(fmt::format("expected a JSON object, found {}", value.type_name()));
  }
  check_numbers(value);
  const auto format = value.at("format").get<std::int64_t>();
  if (format < 1) throw std::invalid_argument(fmt::format("format {} is not possible", format));
  if (format > CheckpointReader::kFormatVersion) {
    throw std::invalid_argument(fmt::format("written by format {}, this program reads up to {}",
                                            format, CheckpointReader::kFormatVersion));
  }
  const auto expected = value.at("crc32c").get<std::uint32_t>();
  value.erase("crc32c");
  if (const std::uint32_t found = checksum(value); found != expected) {
    throw std::invalid_argument(
        fmt::format("it was changed: CRC32C is {:08x}, expected {:08x}", found, expected));
  }
  Manifest manifest;
  manifest.meta = meta_of(value);
  value.at("block_bytes").get_to(manifest.block_bytes);
  add_tables(manifest, value);
  manifest.vocabulary = vocabulary_of(value);
  if (const int needed = needed_format(manifest); format < needed) {
    throw std::invalid_argument(
        fmt::format("it is of format {} with tensors of format {}", format, needed));
  }
  check(manifest);
  return manifest;
}

/// Throws if `path` is a link to outside of its folder.
void require_inside(const std::string& folder, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_symlink(path, error)) return;
  if (fs::canonical(path, error).parent_path() == fs::canonical(folder, error)) return;
  throw Error(ExitCode::checkpoint,
              path + ": it is a link out of the checkpoint; copy the file into the folder");
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  json value = json_of(manifest.meta);
  value["format"] = needed_format(manifest);
  value["block_bytes"] = manifest.block_bytes;
  value.update(tables_of(manifest));
  if (!manifest.vocabulary.empty()) value["vocabulary"] = json_of(manifest.vocabulary);
  value["crc32c"] = checksum(json::parse(dump(value)));
  return dump(value, 1) + "\n";
}

Manifest manifest_of_text(const std::string& text, const std::string& path) {
  try {
    return parse(text);
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint, path + ": damaged JSON: " + json_problem(error));
  } catch (const std::exception& error) {
    throw Error(ExitCode::checkpoint, path + ": " + error.what());
  }
}

Manifest open_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  std::string text;
  try {
    require_inside(folder, path);
    text = storage::read_text(path, kMostManifestBytes);
  } catch (const Error& error) {
    throw Error(ExitCode::checkpoint, error.what());
  }
  Manifest manifest = manifest_of_text(text, path);
  const auto named = step_of_name(std::filesystem::path(folder).filename().string());
  if (named && *named != manifest.meta.step) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: it is of step {}; give the folder the name {}", path,
                            manifest.meta.step, step_name(manifest.meta.step)));
  }
  for (const FileEntry& file : manifest.files) {
    require_inside(folder, folder + "/" + file.name);
    std::error_code error;
    const auto bytes = std::filesystem::file_size(folder + "/" + file.name, error);
    if (error) {
      throw Error(ExitCode::checkpoint, folder + "/" + file.name + ": " + error.message());
    }
    if (bytes != file.bytes) {
      throw Error(ExitCode::checkpoint, fmt::format("{}/{}: it has {} bytes, expected {}", folder,
                                                    file.name, bytes, file.bytes));
    }
  }
  return manifest;
}

std::string table_text(const Manifest& mine) { return dump(tables_of(mine)); }

void add_table(Manifest& all, const std::string& text) { add_tables(all, json::parse(text)); }

}  // namespace hyperslab::io
