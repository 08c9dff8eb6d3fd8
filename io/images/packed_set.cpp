// SPDX-License-Identifier: Apache-2.0
#include "images/packed_set.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "files/npy_header.hpp"
#include "hyperslab/io/json_depth.hpp"
#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

const char* const kSetRemedy = "pack the images again with hyperslab pack-images";

[[noreturn]] void fail(const std::string& path, const std::string& expected,
                       const std::string& found) {
  fail_file(path, expected, found, kSetRemedy, kImageFile);
}

json parse(const ImageFile& file) {
  const std::string_view text = text_of(file.file.bytes());
  if (is_too_deep(text)) fail(file.path, "flat JSON", "lists nested too deep");
  json parsed = json::parse(text, nullptr, false);
  if (!parsed.is_object()) fail(file.path, "a JSON object", "something else");
  if (parsed.value("format", json()) != kSetFormat) {
    fail(file.path, fmt::format(R"("format": "{}")", kSetFormat), "another format");
  }
  if (parsed.value("version", json()) != kSetVersion) {
    fail(file.path, fmt::format("version {} of the format", kSetVersion),
         parsed.value("version", json()).dump());
  }
  return parsed;
}

const json& list(const ImageFile& file, const json& set, const char* key) {
  const auto found = set.find(key);
  if (found == set.end() || !found->is_array()) {
    fail(file.path, fmt::format("a list \"{}\"", key), "none");
  }
  return *found;
}

/// A shard of the folder, of the size that set.json gives.
ImageFile open_shard(const ImageFile& set_file, const json& entry, const std::string& folder) {
  const json name = entry.is_object() ? entry.value("file", json()) : json();
  const json bytes = entry.is_object() ? entry.value("bytes", json()) : json();
  const bool plain = name.is_string() && !name.get_ref<const std::string&>().empty() &&
                     name.get_ref<const std::string&>().find_first_of("/\\") == std::string::npos;
  if (!plain || !bytes.is_number_unsigned()) {
    fail(set_file.path, "shards with a file of this folder and its bytes", "something else");
  }
  const std::string path = folder + "/" + name.get<std::string>();
  ImageFile shard{path, MappedFile(path, kImageFile)};
  if (static_cast<std::uint64_t>(shard.file.size()) != bytes.get<std::uint64_t>()) {
    fail(path, fmt::format("{} bytes", bytes.get<std::uint64_t>()),
         fmt::format("{}", shard.file.size()));
  }
  return shard;
}

std::span<const ImageRow> rows_of(const ImageFile& index, const ImageFile& set_file,
                                  const json& images) {
  if (!images.is_number_unsigned()) fail(set_file.path, "a number \"images\"", images.dump());
  const auto count = images.get<std::uint64_t>();
  const std::string header = npy_header("<i8", fmt::format("({}, 4)", count));
  const auto bytes = index.file.bytes();
  if (!text_of(bytes).starts_with(header)) {
    fail(index.path, fmt::format("an array of int64, shape ({}, 4)", count), "another header");
  }
  const auto body = bytes.subspan(header.size());
  if (body.size() % sizeof(ImageRow) != 0 || body.size() / sizeof(ImageRow) != count) {
    fail(index.path, fmt::format("{} rows of {} bytes", count, sizeof(ImageRow)),
         fmt::format("{} bytes of rows", body.size()));
  }
  // Mapped memory begins at a page, and the header is a multiple of 64 bytes.
  return {reinterpret_cast<const ImageRow*>(body.data()), body.size() / sizeof(ImageRow)};
}

}  // namespace

bool is_packed_set(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder + "/" + kSetFile, ignored);
}

ImageFiles open_packed_set(const std::string& folder) {
  ImageFiles files;
  files.format = "packed";
  files.others = map_image_files({folder + "/" + kIndexFile, folder + "/" + kSetFile});
  const ImageFile& set_file = files.others.back();
  const json set = parse(set_file);
  for (const json& name : list(set_file, set, "classes")) {
    if (!name.is_string()) fail(set_file.path, "names of classes", name.dump().substr(0, 40));
    files.classes.push_back(name.get<std::string>());
  }
  for (const json& entry : list(set_file, set, "shards")) {
    files.shards.push_back(open_shard(set_file, entry, folder));
  }
  if (files.shards.empty()) fail(set_file.path, "shards", "none");
  files.rows = rows_of(files.others.front(), set_file, set.value("images", json()));
  return files;
}

}  // namespace hyperslab::io
