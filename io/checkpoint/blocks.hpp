// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// A run of bytes in a file under one CRC32C: a block of a piece, or a part of HDF5's structure.
struct StoredBlock {
  std::string what;  ///< "tensor X, block 3 of rank_00001.h5"
  const std::string* file = nullptr;
  std::uint64_t file_offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::size_t tag = 0;  ///< free for the caller's use
};

/// Block `k` of a piece of a tensor of this dtype.
[[nodiscard]] StoredBlock stored_block(const std::string& tensor, DType dtype,
                                       const CheckpointReader::Piece& piece, std::size_t k,
                                       std::uint64_t block_bytes);

/// Reads every block once, file by file, on a few threads, and calls `use` with it and its bytes,
/// or with null bytes and what is wrong with it. `use` is called from several threads at once.
/// Bytes are aligned as any scalar.
using UseBlock =
    std::function<void(const StoredBlock& block, const char* bytes, const std::string& problem)>;
void read_blocks(const std::string& folder, std::vector<StoredBlock> blocks, const UseBlock& use);

}  // namespace hyperslab::io
