// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy, versions 1 to 3 (numpy.lib.format): magic, version, header length, a Python dict
// literal with descr, fortran_order and shape, then the array.
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "dataset/shard.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
const char* const kNpyRemedy = "save it with numpy.save(path, tokens.astype(numpy.uint16))";

std::string_view shard_text(const Shard& shard) {
  const auto bytes = shard.file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The dict's text; `body` becomes the offset of the array.
std::string_view dict_of(const Shard& shard, std::size_t& body) {
  const std::string_view text = shard_text(shard);
  if (!text.starts_with(kMagic) || text.size() < 12) {
    fail_file(shard.path, "the .npy magic number \\x93NUMPY and a header", "other bytes",
              kNpyRemedy);
  }
  const int major = static_cast<unsigned char>(text[6]);
  if (major < 1 || major > 3) {
    fail_file(shard.path, ".npy version 1, 2 or 3", fmt::format("version {}", major), kNpyRemedy);
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  std::uint32_t length = 0;
  std::memcpy(&length, text.data() + 8, length_bytes);
  const std::size_t start = 8 + length_bytes;
  if (text.size() < start + length) {
    fail_file(shard.path, fmt::format("a header of {} bytes", start + length),
              fmt::format("{} bytes in all", text.size()), "copy or write the file again");
  }
  body = start + length;
  return text.substr(start, length);
}

/// Text after "'key':" in the dict, without leading blanks. Throws if there is none.
std::string_view value_of(const Shard& shard, std::string_view dict, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string name = fmt::format("{0}{1}{0}", quote, key);
    const std::size_t found = dict.find(name);
    const std::size_t colon =
        found == dict.npos ? dict.npos : dict.find_first_not_of(' ', found + name.size());
    if (colon == dict.npos || dict[colon] != ':') continue;
    const std::size_t value = dict.find_first_not_of(' ', colon + 1);
    if (value != dict.npos) return dict.substr(value);
  }
  fail_file(shard.path, fmt::format("'{}' in the .npy header", key), "none", kNpyRemedy);
}

std::string_view descr_of(std::string_view value) {
  const std::size_t end = value.find(value.front(), 1);
  const bool quoted = (value.front() == '\'' || value.front() == '"') && end != value.npos;
  return quoted ? value.substr(1, end - 1) : "a structured type";
}

IdType type_of(const Shard& shard, std::string_view value) {
  const std::string_view descr = descr_of(value);
  if (descr == "<u2") return IdType::u16;
  if (descr == "<u4") return IdType::u32;
  if (descr == "<i4") return IdType::i32;
  if (descr == "<i8") return IdType::i64;
  const bool big_endian = descr.starts_with('>');
  fail_file(shard.path, "little-endian token ids of dtype <u2, <u4, <i4 or <i8",
            fmt::format("{}{}", descr, big_endian ? " (big-endian)" : ""), kNpyRemedy);
}

std::int64_t count_of(const Shard& shard, std::string_view value) {
  const std::string_view shape = value.substr(0, value.find(')') + 1);
  const std::size_t digits = shape.find_first_not_of(' ', 1);
  std::int64_t count = -1;
  if (shape.starts_with('(') && digits != shape.npos) {
    const auto [rest, error] =
        std::from_chars(shape.data() + digits, shape.data() + shape.size(), count);
    const std::string_view tail(rest, static_cast<std::size_t>(shape.end() - rest));
    const bool one_number = error == std::errc{} && tail.starts_with(',') &&
                            tail.find_first_not_of(" )", 1) == tail.npos;
    if (!one_number) count = -1;
  }
  if (count < 0) {
    fail_file(shard.path, "a 1-D array, shape (tokens,)",
              fmt::format("shape {}", shape.empty() ? value.substr(0, 40) : shape), kNpyRemedy);
  }
  return count;
}

/// Rows and columns of an array of one or two dimensions, (-1, 1) of another.
std::pair<std::int64_t, std::int64_t> rows_and_columns(std::string_view shape, bool is_matrix) {
  std::int64_t rows = -1;
  std::int64_t columns = 1;
  const char* end = shape.data() + shape.size();
  const auto number = [&](const char* from, std::int64_t& value) {
    while (from < end && (*from == '(' || *from == ' ' || *from == ',')) ++from;
    const auto [rest, error] = std::from_chars(from, end, value);
    return error == std::errc{} ? rest : end;
  };
  const char* rest = number(shape.data(), rows);
  if (is_matrix) rest = number(rest, columns);
  while (rest < end && (*rest == ',' || *rest == ' ')) ++rest;
  const bool is_whole = rest < end && *rest == ')' && rows >= 0 && columns > 0;
  return is_whole ? std::pair{rows, columns} : std::pair{std::int64_t{-1}, std::int64_t{1}};
}

}  // namespace

ShardColumn open_npy_column(const Shard& shard, std::string_view name, std::string_view descr,
                            bool is_matrix) {
  ShardColumn column;
  const std::string path(name);
  if (!stamp_of(path)) return column;
  Shard file;
  file.path = path;
  file.file = MappedFile(path);
  std::size_t body = 0;
  const std::string_view dict = dict_of(file, body);
  const std::string_view found = descr_of(value_of(file, dict, "descr"));
  const std::string_view text = value_of(file, dict, "shape");
  const std::string_view shape = text.substr(0, text.find(')') + 1);
  const auto [rows, columns] = rows_and_columns(shape, is_matrix);
  const auto bytes = file.file.bytes().subspan(body);
  const bool fits = rows >= 0 && rows == shard.count &&
                    static_cast<std::int64_t>(bytes.size()) / 4 / columns == rows &&
                    bytes.size() == static_cast<std::size_t>(4 * rows * columns);
  if (found != descr || !fits || !value_of(file, dict, "fortran_order").starts_with("False")) {
    fail_file(path,
              fmt::format("dtype {} and shape ({}{}) in C order", descr, shard.count,
                          is_matrix ? ", k" : ",") +
                  ", as the tokens have",
              fmt::format("dtype {} and shape {}, {} bytes", found, shape, bytes.size()),
              "write tokens and their values again");
  }
  column.columns = columns;
  column.path = path;
  column.file = std::move(file.file);
  column.bytes = column.file.bytes().subspan(body);
  return column;
}

bool has_npy_magic(const Shard& shard) { return shard_text(shard).starts_with(kMagic); }

void read_npy_header(Shard& shard) {
  std::size_t body = 0;
  const std::string_view dict = dict_of(shard, body);
  shard.type = type_of(shard, value_of(shard, dict, "descr"));
  shard.format = fmt::format("npy {}", name_of(shard.type));
  shard.count = count_of(shard, value_of(shard, dict, "shape"));
  if (!value_of(shard, dict, "fortran_order").starts_with("False")) {
    fail_file(shard.path, "C order (fortran_order False)", "Fortran order", kNpyRemedy);
  }
  shard.offset = static_cast<std::int64_t>(body);
  const std::int64_t found = shard.file.size() - shard.offset;
  if (found % size_of(shard.type) != 0 || found / size_of(shard.type) != shard.count) {
    fail_file(shard.path,
              fmt::format("{} tokens of {} bytes after the header of {}", shard.count,
                          size_of(shard.type), shard.offset),
              fmt::format("{} bytes there ({} in all)", found, shard.file.size()),
              "copy or write the file again");
  }
}

}  // namespace hyperslab::io
