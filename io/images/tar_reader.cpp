// SPDX-License-Identifier: Apache-2.0
#include "images/tar_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "dataset/mapped_file.hpp"
#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

using namespace std::string_view_literals;

const char* const kTarRemedy = "write or copy the tar again";

/// A field that a zero byte ends, if it does not fill its room.
std::string_view field(std::string_view header, std::size_t at, std::size_t length) {
  const std::string_view text = header.substr(at, length);
  return text.substr(0, text.find('\0'));
}

/// Octal digits among blanks, or GNU's big-endian binary after a byte of 0x80; -1 if it is neither.
std::int64_t number(std::string_view text) {
  if (static_cast<unsigned char>(text.front()) == 0x80) {
    std::uint64_t value = 0;
    for (const char c : text.substr(1)) {
      if (value >> 55U != 0) return -1;
      value = value << 8U | static_cast<unsigned char>(c);
    }
    return static_cast<std::int64_t>(value);
  }
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == text.npos) return -1;
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + begin, end, value, 8);
  const std::string_view tail(rest, static_cast<std::size_t>(end - rest));
  const bool whole = error == std::errc{} && tail.find_first_not_of(" \0"sv) == tail.npos;
  return whole && value >= 0 ? value : -1;
}

/// The sum of all bytes, the sum's own bytes counted as blanks.
std::int64_t checksum(std::string_view header) {
  std::int64_t sum = std::int64_t{8} * ' ';
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (i < 148 || i >= 156) sum += static_cast<unsigned char>(header[i]);
  }
  return sum;
}

const char* kind_of(char type) {
  switch (type) {
    case '1': return "a hard link";
    case '2': return "a symbolic link";
    case '3':
    case '4': return "a device";
    case '6': return "a pipe";
    case 'S': return "a sparse file";
    default: return "a member of an unknown kind";
  }
}

}  // namespace

struct TarReader::Header {
  std::string name;
  char type = '0';
  std::int64_t bytes = 0;
};

TarReader::TarReader(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {
  require_uncompressed(path_, bytes_);
}

void TarReader::fail(const std::string& expected, const std::string& found) const {
  fail_file(path_, expected, found, kTarRemedy, kImageFile);
}

TarReader::Header TarReader::read_header() const {
  const auto block =
      bytes_.subspan(static_cast<std::size_t>(at_), static_cast<std::size_t>(kTarBlock));
  const std::string_view text = text_of(block);
  if (number(text.substr(148, 8)) != checksum(text)) {
    fail(fmt::format("the header of a member at byte {}", at_), "other bytes (wrong checksum)");
  }
  Header header{.name = tar_header_name(block), .type = text[156], .bytes = 0};
  header.bytes = member_size_.value_or(number(text.substr(124, 12)));
  const std::int64_t left = static_cast<std::int64_t>(bytes_.size()) - at_ - kTarBlock;
  if (header.bytes < 0 || header.bytes > left) {
    fail(fmt::format("a whole member '{}' at byte {}", header.name, at_),
         header.bytes < 0 ? "a size that is no number"
                          : fmt::format("{} of its {} bytes", left, header.bytes));
  }
  return header;
}

std::string_view TarReader::body(const Header& header) const {
  return text_of(bytes_.subspan(static_cast<std::size_t>(at_ + kTarBlock),
                                static_cast<std::size_t>(header.bytes)));
}

void TarReader::read_pax(std::string_view records) {
  while (!records.empty()) {  // "LENGTH key=value\n"
    std::size_t length = 0;
    const auto [rest, error] =
        std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(rest - records.data());
    if (error != std::errc{} || length < digits + 2 || length > records.size()) {
      fail(fmt::format("records of pax at byte {}", at_), "other bytes");
    }
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const std::string_view key = record.substr(0, record.find('='));
    const std::string_view value = record.substr(std::min(key.size() + 1, record.size()));
    if (key == "path") long_name_ = value;
    if (key == "size") {
      std::int64_t size = -1;
      std::from_chars(value.data(), value.data() + value.size(), size);
      member_size_ = size;
    }
    if (key.starts_with("GNU.sparse")) fail("regular files", "a sparse file");
    records.remove_prefix(length);
  }
}

void TarReader::require_regular(const Header& header, const std::string& name) const {
  if (header.type == '0' || header.type == '\0' || header.type == '7') return;
  fail_file(path_, "regular files", fmt::format("'{}', {}", name, kind_of(header.type)),
            "leave it out of the tar", kImageFile);
}

void TarReader::require_inside(const std::string& name) const {
  bool inside = !name.empty() && name.front() != '/' && name.find('\0') == name.npos;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.compare(begin, end - begin, "..") == 0) inside = false;
    begin = end + 1;
  }
  if (inside) return;
  fail_file(path_, "names of members within a folder", fmt::format("'{}'", name),
            "write the tar again from inside its folder", kImageFile);
}

std::optional<TarMember> TarReader::next() {
  while (at_ < static_cast<std::int64_t>(bytes_.size())) {
    const std::int64_t left = static_cast<std::int64_t>(bytes_.size()) - at_;
    if (left < kTarBlock)
      fail("whole blocks of 512 bytes", fmt::format("{} bytes at the end", left));
    const auto block = text_of(bytes_.subspan(static_cast<std::size_t>(at_), 512));
    if (block.find_first_not_of('\0') == block.npos) return {};
    const Header header = read_header();
    const std::int64_t offset = at_ + kTarBlock;
    if (header.type == 'L') {
      long_name_ = field(body(header), 0, static_cast<std::size_t>(header.bytes));
    } else if (header.type == 'x') {
      read_pax(body(header));
    } else if (header.type != 'K' && header.type != 'g') {
      std::string name = long_name_.empty() ? header.name : std::exchange(long_name_, {});
      member_size_.reset();
      while (name.starts_with("./")) name.erase(0, 2);
      const bool is_folder = header.type == '5';
      const bool is_top = is_folder && (name.empty() || name == ".");
      if (!is_top) {
        require_inside(name);
        if (!is_folder) require_regular(header, name);
        if (is_folder && !name.ends_with('/')) name += '/';
        at_ = offset + in_tar_blocks(header.bytes);
        return TarMember{std::move(name), offset, header.bytes};
      }
    }
    at_ = offset + in_tar_blocks(header.bytes);
  }
  fail_file(path_, "a block of zeros at the end, as every tar has", "the last member",
            "copy the file again; if it is whole: head -c 1024 /dev/zero >> FILE", kImageFile);
}

std::string tar_header_name(std::span<const std::byte> header) {
  const std::string_view text = text_of(header);
  const std::string name(field(text, 0, 100));
  // GNU's older format has times where ustar has a prefix.
  const std::string_view prefix =
      text.substr(257, 6) == "ustar\0"sv ? field(text, 345, 155) : std::string_view();
  return prefix.empty() ? name : std::string(prefix) + '/' + name;
}

void require_uncompressed(const std::string& path, std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  const char* program = nullptr;
  if (text.starts_with("\x1F\x8B"sv)) program = "gzip";
  if (text.starts_with("\xFD\x37zXZ"sv)) program = "xz";
  if (text.starts_with("BZh"sv)) program = "bzip2";
  if (text.starts_with("\x28\xB5\x2F\xFD"sv)) program = "zstd";
  if (program == nullptr) return;
  fail_file(path, "a tar that can be mapped to memory",
            fmt::format("one compressed by {}", program),
            fmt::format("unpack it first: {} -d FILE", program), kImageFile);
}

}  // namespace hyperslab::io
