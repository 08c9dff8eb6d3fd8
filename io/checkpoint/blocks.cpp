// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "checkpoint/dtypes.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "run_jobs.hpp"

namespace hyperslab::io {
namespace {

constexpr int kReaders = 2;

using Batch = std::span<const StoredBlock>;

/// Neighbours in one file, together at most as large as the largest block may be, so that small
/// tensors share an open file.
std::vector<Batch> batches_of(const std::vector<StoredBlock>& blocks) {
  std::vector<Batch> batches;
  std::uint64_t bytes = 0;
  for (const StoredBlock& block : blocks) {
    bytes += block.bytes;
    if (batches.empty() || *batches.back().front().file != *block.file ||
        bytes > CheckpointReader::kBlockBytes) {
      batches.emplace_back(&block, 1);
      bytes = block.bytes;
    } else {
      batches.back() = Batch(batches.back().data(), batches.back().size() + 1);
    }
  }
  return batches;
}

std::string problem_with(const StoredBlock& block, const char* bytes, std::uint64_t found) {
  if (found != block.bytes) {
    return fmt::format("{}: it ends after {} of {} bytes", block.what, found, block.bytes);
  }
  const std::uint32_t crc = crc32c(bytes, block.bytes);
  if (crc == block.crc32c) return "";
  return fmt::format("{}: CRC32C is {:08x}, expected {:08x}", block.what, crc, block.crc32c);
}

/// The file, or nothing with the reason in `failure`.
std::optional<storage::File> open(const std::string& path, std::string& failure) {
  try {
    return storage::File::open(path);
  } catch (const Error& error) {
    failure = error.what();
    return std::nullopt;
  }
}

/// Reads the block into `buffer` and returns what is wrong with it, or nothing.
std::string read_block(const storage::File& file, const StoredBlock& block, char* buffer) {
  try {
    return problem_with(block, buffer, file.read_at(block.file_offset, buffer, block.bytes));
  } catch (const Error& error) {
    return block.what + ": " + error.what();
  }
}

void read_batch(const std::string& folder, Batch batch, const UseBlock& use) {
  const auto largest = std::ranges::max(batch, {}, &StoredBlock::bytes).bytes;
  const std::unique_ptr<char[]> buffer(new char[largest]);  // NOLINT: no zeros first
  std::string failure;
  const auto file = open(folder + "/" + *batch.front().file, failure);
  for (const StoredBlock& block : batch) {
    const std::string problem =
        file ? read_block(*file, block, buffer.get()) : block.what + ": " + failure;
    use(block, problem.empty() ? buffer.get() : nullptr, problem);
  }
}

}  // namespace

StoredBlock stored_block(const std::string& tensor, DType dtype,
                         const CheckpointReader::Piece& piece, std::size_t k,
                         std::uint64_t block_bytes) {
  const std::uint64_t bytes = bytes_of_part(piece.part, dtype);
  const std::uint64_t begin = k * block_bytes;
  return {fmt::format("tensor {}, block {} of {}", tensor, k, piece.file),
          &piece.file,
          piece.file_offset + begin,
          std::min(block_bytes, bytes - begin),
          piece.crc32c[k],
          0};
}

void read_blocks(const std::string& folder, std::vector<StoredBlock> blocks, const UseBlock& use) {
  std::ranges::sort(blocks, [](const StoredBlock& a, const StoredBlock& b) {
    return std::tie(*a.file, a.file_offset) < std::tie(*b.file, b.file_offset);
  });
  const std::vector<Batch> batches = batches_of(blocks);
  run_jobs(batches.size(), kReaders, [&](std::size_t i) { read_batch(folder, batches[i], use); });
}

}  // namespace hyperslab::io
