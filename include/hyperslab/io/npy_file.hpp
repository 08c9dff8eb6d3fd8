// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace hyperslab::io {

class AtomicFile;

/// A new .npy file of f32 (elements,) or (rows, columns), or u8 (images, rows, columns, channels),
/// from front to end. Written under a temporary name; finish() renames it, without that nothing is
/// left. A device, a pipe or a symbolic link is kept in memory and written in place by finish().
/// All functions throw Error(storage).
class NpyFile {
 public:
  NpyFile(const std::string& path, std::int64_t elements);
  NpyFile(const std::string& path, std::int64_t rows, std::int64_t columns);
  struct Images {
    std::int64_t count = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t channels = 3;
  };
  NpyFile(const std::string& path, const Images& images);
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;
  NpyFile(NpyFile&&) = delete;
  NpyFile& operator=(NpyFile&&) = delete;

  void append(std::span<const float> row);
  void append(std::span<const std::uint8_t> values);
  void finish();

 private:
  NpyFile(const std::string& path, const std::string& header);
  void append_bytes(std::span<const std::byte> bytes);

  std::string path_;
  std::unique_ptr<AtomicFile> file_;  ///< absent if it is written in place
  std::string in_place_;
};

}  // namespace hyperslab::io
