// SPDX-License-Identifier: Apache-2.0
#include "safetensors/header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "safetensors/strict_json.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::array<std::pair<std::string_view, std::uint64_t>, 15> kDtypeBytes = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"I64", 8},
    {"U64", 8},
    {"F64", 8},
}};

/// The file and tensor that a complaint names.
struct Subject {
  std::string file;
  std::string tensor;
  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ExitCode::checkpoint, fmt::format("{}: tensor {}: {}", file, shown(tensor), text));
  }
};

const json& member(const Subject& subject, const json& tensor, const char* key) {
  const auto found = tensor.find(key);
  if (found == tensor.end()) subject.fail(fmt::format("its header has no {}", key));
  return *found;
}

constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<Dim>::max());

std::uint64_t whole(const Subject& subject, const json& value, const char* what) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMost) {
    subject.fail(fmt::format("{}: expected a whole number, found {}", what, shown(value.dump())));
  }
  return value.get<std::uint64_t>();
}

std::uint64_t dtype_bytes(const Subject& subject, const std::string& dtype) {
  const auto* known =
      std::ranges::find(kDtypeBytes, dtype, [](const auto& row) { return std::string(row.first); });
  if (known == kDtypeBytes.end()) {
    subject.fail(
        fmt::format("dtype {} is not known; save the model as F32, F16 or BF16", shown(dtype)));
  }
  return known->second;
}

/// Bytes of the shape; fails if they do not fit in 63 bits, also if a size of 0 were 1.
std::uint64_t shape_bytes(const Subject& subject, const SafetensorsEntry& entry) {
  std::uint64_t bytes = dtype_bytes(subject, entry.dtype);
  for (const Dim dim : entry.shape) {
    const auto size = static_cast<std::uint64_t>(std::max<Dim>(dim, 1));
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMost) {
      subject.fail("its shape has more elements than a file can hold");
    }
  }
  const bool empty = std::ranges::find(entry.shape, 0) != entry.shape.end();
  return empty ? 0 : bytes;
}

/// `data`: where the tensors' bytes begin and how many there are.
SafetensorsEntry parse_entry(const Subject& subject, const json& tensor,
                             std::pair<std::uint64_t, std::uint64_t> data) {
  if (!tensor.is_object()) subject.fail("expected dtype, shape and data_offsets");
  SafetensorsEntry entry;
  entry.file = subject.file;
  const json& dtype = member(subject, tensor, "dtype");
  if (!dtype.is_string()) subject.fail("dtype: expected a name");
  entry.dtype = dtype.get<std::string>();
  const json& shape = member(subject, tensor, "shape");
  if (!shape.is_array()) subject.fail("shape: expected a list");
  for (const json& dim : shape) {
    entry.shape.push_back(static_cast<Dim>(whole(subject, dim, "shape")));
  }
  const json& offsets = member(subject, tensor, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    subject.fail("data_offsets: expected two numbers");
  const std::uint64_t begin = whole(subject, offsets[0], "data_offsets");
  const std::uint64_t end = whole(subject, offsets[1], "data_offsets");
  if (begin > end || end > data.second) {
    subject.fail(
        fmt::format("its bytes {} to {} are not within the {} bytes of data in the file; "
                    "the file is damaged or cut short",
                    begin, end, data.second));
  }
  entry.offset = data.first + begin;
  entry.bytes = end - begin;
  const std::uint64_t expected = shape_bytes(subject, entry);
  if (expected != entry.bytes) {
    subject.fail(fmt::format("{} of its shape has {} bytes, the header gives it {}", entry.dtype,
                             expected, entry.bytes));
  }
  return entry;
}

/// Every byte of data belongs to exactly one tensor, as the format demands.
void require_exact_cover(const std::string& file, const SafetensorsEntries& entries,
                         std::uint64_t begin, std::uint64_t end) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  order.reserve(entries.size());
  for (const auto& [name, entry] : entries) order.emplace_back(&entry, &name);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    return std::pair(a.first->offset, a.first->bytes) < std::pair(b.first->offset, b.first->bytes);
  });
  std::uint64_t next = begin;
  for (const auto& [entry, name] : order) {
    const Subject subject = {file, *name};
    if (entry->offset < next) subject.fail("its bytes overlap those of another tensor");
    if (entry->offset > next) subject.fail("there are bytes before it that belong to no tensor");
    next += entry->bytes;
  }
  if (next != end) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: {} bytes at its end belong to no tensor", file, end - next));
  }
}

/// The header's JSON, and the file's size.
std::pair<std::string, std::uint64_t> header_text(const std::string& file) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: cannot read it: {}", file, error.message()));
  }
  const auto refuse = [&](const std::string& text) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: {}", file, text));
  };
  const storage::File opened = storage::File::open(file);
  std::uint64_t length = 0;
  if (opened.read_at(0, &length, sizeof(length)) < sizeof(length)) {
    refuse(fmt::format("{} bytes are too few for a safetensors file", size));
  }
  if (length > kMostHeaderBytes || length > size - sizeof(length)) {
    refuse(
        fmt::format("its header claims {} bytes, the file has {} (at most {} are read); it is "
                    "cut short or no safetensors file",
                    length, size, kMostHeaderBytes));
  }
  std::string text(length, '\0');
  if (opened.read_at(sizeof(length), text.data(), text.size()) < text.size()) {
    refuse("it was cut while it was being read");
  }
  if (text.empty() || text.front() != '{') refuse("its header is no JSON object");
  return {std::move(text), size};
}

}  // namespace

SafetensorsEntries read_header(const std::string& file) {
  const auto [text, size] = header_text(file);
  const std::uint64_t begin = sizeof(std::uint64_t) + text.size();
  const json header = strict_json(text, file);
  SafetensorsEntries entries;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    entries.emplace(name, parse_entry({file, name}, tensor, {begin, size - begin}));
  }
  require_exact_cover(file, entries, begin, size);
  return entries;
}

}  // namespace hyperslab::io
