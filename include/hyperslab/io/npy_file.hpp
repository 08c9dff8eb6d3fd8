// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace hyperslab::io {

class AtomicFile;

/// A new .npy file of f32 (rows, columns), row by row. Written under a temporary name; finish()
/// renames it, without that nothing is left. All functions throw Error(storage).
class NpyFile {
 public:
  NpyFile(const std::string& path, std::int64_t rows, std::int64_t columns);
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;
  NpyFile(NpyFile&&) = delete;
  NpyFile& operator=(NpyFile&&) = delete;

  void append(std::span<const float> row);
  void finish();

 private:
  std::unique_ptr<AtomicFile> file_;
};

}  // namespace hyperslab::io
