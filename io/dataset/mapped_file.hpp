// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hyperslab::io {

/// A regular, non-empty file mapped for reading as long as this lives.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error(data) where `path` is missing, not a regular file, not readable or empty.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(size_); }

  enum class Access : std::uint8_t { sequential, random };
  /// Tells the kernel whether to read ahead.
  void expect(Access access) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace hyperslab::io
