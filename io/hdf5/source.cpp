// SPDX-License-Identifier: Apache-2.0
#include "hdf5/source.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "dataset/mapped_file.hpp"

namespace hyperslab::io::hdf5 {
namespace {

std::uint64_t number_in(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

}  // namespace

std::span<const std::byte> Source::at(std::uint64_t address, std::uint64_t length,
                                      const std::string& what) const {
  if (address > size() || length > size() - address) {
    fail_damaged(fmt::format("{}, {} bytes from byte {} on, beyond its {} bytes", what, length,
                             address, size()));
  }
  return bytes_.subspan(address, length);
}

void Source::fail_damaged(const std::string& found) const {
  fail_file(path_, "a sound HDF5 file", found, "copy or write the file again");
}

void Source::fail_unread(const std::string& expected, const std::string& found) const {
  fail_file(path_, expected, found, "write it with hyperslab tokenize --output FILE.h5");
}

std::uint64_t Cursor::number(std::size_t bytes) { return number_in(take(bytes)); }

std::span<const std::byte> Cursor::take(std::uint64_t bytes) {
  if (bytes > rest_.size()) fail("no end in its bytes");
  const auto taken = rest_.first(bytes);
  rest_ = rest_.subspan(bytes);
  return taken;
}

void Cursor::expect(std::string_view signature) {
  const auto found = take(signature.size());
  if (std::memcmp(found.data(), signature.data(), signature.size()) != 0) {
    fail(fmt::format("no signature {}", signature));
  }
}

void Cursor::fail(const std::string& found) const {
  source_->fail_damaged(what_ + " with " + found);
}

std::uint32_t lookup3(std::span<const std::byte> bytes) {
  std::uint32_t a = 0xDEADBEEF + static_cast<std::uint32_t>(bytes.size());
  std::uint32_t b = a;
  std::uint32_t c = a;
  const auto word = [&](std::size_t begin) {
    if (begin >= bytes.size()) return std::uint32_t{0};
    return static_cast<std::uint32_t>(
        number_in(bytes.subspan(begin, std::min<std::size_t>(4, bytes.size() - begin))));
  };
  const auto add = [&](std::size_t begin) {
    a += word(begin), b += word(begin + 4), c += word(begin + 8);
  };
  std::size_t begin = 0;
  for (; bytes.size() - begin > 12; begin += 12) {
    add(begin);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
  }
  if (begin == bytes.size()) return c;
  add(begin);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

std::span<const std::byte> checked(const Source& source, std::uint64_t address,
                                   std::uint64_t length, const std::string& what) {
  constexpr std::uint64_t kChecksum = 4;
  if (length < kChecksum) source.fail_damaged(what + " without a checksum");
  const auto whole = source.at(address, length, what);
  const auto content = whole.first(length - kChecksum);
  if (lookup3(content) != number_in(whole.last(kChecksum))) {
    source.fail_damaged(what + " with another checksum than it says");
  }
  return content;
}

}  // namespace hyperslab::io::hdf5
