// SPDX-License-Identifier: Apache-2.0
// One token file, whatever its format; private to io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "dataset/mapped_file.hpp"

namespace hyperslab::io {

/// Throws Error(data): "token file 'PATH': wanted W, found F; REMEDY".
[[noreturn]] void fail_file(const std::string& path, const std::string& wanted,
                            const std::string& found, const std::string& remedy,
                            std::source_location where = std::source_location::current());

/// Little-endian element types of token files.
enum class IdType : std::uint8_t { u16, u32, i32, i64 };
[[nodiscard]] std::int64_t size_of(IdType type);
[[nodiscard]] const char* name_of(IdType type);  ///< "uint16"

/// Token ids in memory: a window on the mapped file, or on `memory` where the file's layout does
/// not allow that.
struct Shard {
  std::string path;
  std::string format;  ///< "llm.c uint16", "npy int32", "raw uint16", "HDF5 uint16"
  IdType type = IdType::u16;
  std::int64_t count = 0;   ///< tokens
  std::int64_t offset = 0;  ///< bytes from the file's start to the first token; -1: not mapped
  MappedFile file;
  std::vector<std::byte> memory;

  [[nodiscard]] const std::byte* ids() const {
    return offset >= 0 ? file.bytes().data() + offset : memory.data();
  }
  [[nodiscard]] std::int64_t bytes() const { return count * size_of(type); }
};

/// Opens one file of any format; `raw_dtype` (uint16 or uint32) is that of .bin files without a
/// header. Checks the header against the file, not the ids. Throws Error(data).
[[nodiscard]] Shard open_shard(const std::string& path, const std::string& raw_dtype);

[[nodiscard]] bool has_llmc_header(const Shard& shard);  ///< also a damaged or big-endian one
void read_llmc_header(Shard& shard);
void read_raw(Shard& shard, const std::string& raw_dtype);
[[nodiscard]] bool has_npy_magic(const Shard& shard);
void read_npy_header(Shard& shard);
[[nodiscard]] bool has_hdf5_signature(const Shard& shard);
void read_hdf5_tokens(Shard& shard);

}  // namespace hyperslab::io
