// SPDX-License-Identifier: Apache-2.0
// Bytes of an HDF5 file that anybody may have written, read within their bounds: everything here is
// "HDF5 File Format Specification" 3.0. Numbers are little-endian, addresses and lengths have eight
// bytes (superblock.hpp refuses others).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace hyperslab::io::hdf5 {

inline constexpr std::uint64_t kUndefinedAddress = ~std::uint64_t{0};

/// A file in memory. A fault of it ends as Error(data) with its path.
class Source {
 public:
  Source(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  [[nodiscard]] std::uint64_t size() const { return bytes_.size(); }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// `length` bytes from `address` on; `what` ("the header of dataset tokens") names them if they
  /// do not lie in the file.
  [[nodiscard]] std::span<const std::byte> at(std::uint64_t address, std::uint64_t length,
                                              const std::string& what) const;
  /// Throws for a file that is damaged: "expected ..., found `found`; copy or write it again".
  [[noreturn]] void fail_damaged(const std::string& found) const;
  /// Throws for a file that is sound, but of a kind that is not read.
  [[noreturn]] void fail_unread(const std::string& expected, const std::string& found) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

/// Reads fields one after the other.
class Cursor {
 public:
  Cursor(const Source& source, std::span<const std::byte> bytes, std::string what)
      : source_(&source), rest_(bytes), what_(std::move(what)) {}

  /// `bytes`: 1 to 8.
  [[nodiscard]] std::uint64_t number(std::size_t bytes);
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t bytes);
  void skip(std::uint64_t bytes) { (void)take(bytes); }
  void expect(std::string_view signature);
  [[nodiscard]] std::size_t left() const { return rest_.size(); }
  [[noreturn]] void fail(const std::string& found) const;

 private:
  const Source* source_;
  std::span<const std::byte> rest_;
  std::string what_;
};

/// Jenkins' lookup3 (hashlittle with initial value 0), HDF5's checksum of metadata.
[[nodiscard]] std::uint32_t lookup3(std::span<const std::byte> bytes);

/// The `length` bytes at `address` without the checksum in the last four, which must be theirs.
[[nodiscard]] std::span<const std::byte> checked(const Source& source, std::uint64_t address,
                                                 std::uint64_t length, const std::string& what);

}  // namespace hyperslab::io::hdf5
