// SPDX-License-Identifier: Apache-2.0
#include "safetensors/strict_json.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"
#include "hyperslab/io/json_problem.hpp"

namespace hyperslab::io {

using nlohmann::json;

std::string shown(const std::string& name) {
  constexpr std::size_t kMost = 160;
  const std::string text = name.size() > kMost ? name.substr(0, kMost) + "..." : name;
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

json strict_json(const std::string& text, const std::string& file) {
  if (is_too_deep(text)) {
    throw Error(ExitCode::checkpoint, file + ": its JSON is nested too deep");
  }
  if (const auto key = repeated_key(text)) {
    throw Error(
        ExitCode::checkpoint,
        fmt::format("{}: {} stands twice in its JSON; the file is damaged", file, shown(*key)));
  }
  json value;
  try {
    value = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: damaged JSON: {}", file, json_problem(error)));
  }
  if (!value.is_object()) {
    throw Error(ExitCode::checkpoint, file + ": expected a JSON object, found something else");
  }
  return value;
}

std::string foreign_text(const std::string& path, std::uint64_t most) {
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: cannot read it: {}", path, error.message()));
  }
  if (bytes > most) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {} bytes, expected at most {}", path, bytes, most));
  }
  return storage::read_text(path, most);
}

}  // namespace hyperslab::io
