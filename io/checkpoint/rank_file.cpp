// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/dtypes.hpp"
#include "checkpoint/layout.hpp"
#include "checkpoint/save.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "run_jobs.hpp"

namespace hyperslab::io {
namespace {

void check(const Slab& slab, bool anywhere) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::internal, "slab of tensor " + slab.tensor + ": " + why);
  };
  if (slab.tensor.empty() || slab.tensor.front() == '/' || slab.tensor.back() == '/') {
    refuse("its name is not one of a tensor");
  }
  const std::string outside = problem_of(slab.part, slab.global_shape);
  if (!outside.empty()) refuse(outside);
  if (slab.data.numel() != slab.part.count.numel())
    refuse("its data are not of the shape it counts");
  const bool is_here = anywhere || slab.data.device() == Device::cpu;
  if (!is_storable(slab.data.dtype()) || !is_here) {
    refuse(fmt::format("its data are {} on {}, expected f32, f16 or u8 on cpu",
                       name_of(slab.data.dtype()), name_of(slab.data.device())));
  }
}

/// Throws if slabs of one tensor are of several dtypes.
void check_dtypes(std::span<const Slab> slabs) {
  std::map<std::string_view, DType> dtypes;
  for (const Slab& slab : slabs) {
    const DType dtype = slab.data.dtype();
    const DType first = dtypes.try_emplace(slab.tensor, dtype).first->second;
    if (dtype != first) {
      throw Error(ExitCode::internal, fmt::format("tensor {} has slabs of {} and of {}",
                                                  slab.tensor, name_of(first), name_of(dtype)));
    }
  }
}

std::vector<Dataset> datasets_of(std::span<const Slab> slabs) {
  std::map<std::string, int> numbers;
  std::vector<Dataset> datasets;
  for (const Slab& slab : slabs) {
    const int number = numbers[slab.tensor]++;
    datasets.push_back({slab.tensor, fmt::format("slab_{}", number), slab.global_shape, slab.part,
                        slab.data.dtype(), 0});
  }
  return datasets;
}

std::vector<CheckpointReader::Piece> without_checksums(std::span<const Dataset> datasets,
                                                       const std::string& file) {
  std::vector<CheckpointReader::Piece> pieces;
  pieces.reserve(datasets.size());
  for (const Dataset& dataset : datasets) {
    pieces.push_back({file, dataset.name, dataset.part, dataset.file_offset, {}});
  }
  return pieces;
}

/// A block of a slab on its way to the file.
struct WrittenBlock {
  const char* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t file_offset = 0;
  std::uint32_t* crc32c = nullptr;
};

void add_blocks(std::vector<WrittenBlock>& blocks, const Slab& slab, CheckpointReader::Piece& piece,
                std::size_t block_bytes) {
  const auto* data = static_cast<const char*>(slab.data.raw());
  const std::size_t bytes = slab.data.bytes();
  piece.crc32c.resize((bytes + block_bytes - 1) / block_bytes);
  for (std::size_t k = 0; k < piece.crc32c.size(); ++k) {
    const std::size_t begin = k * block_bytes;
    blocks.push_back({data + begin, std::min(block_bytes, bytes - begin), piece.file_offset + begin,
                      &piece.crc32c[k]});
  }
}

/// In pieces that the processor's cache still holds when they are written.
void write_block(storage::File& file, const WrittenBlock& block) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::uint32_t crc = 0;
  for (std::size_t begin = 0; begin < block.bytes; begin += kPiece) {
    const std::size_t some = std::min(kPiece, block.bytes - begin);
    crc = crc32c(block.data + begin, some, crc);
    file.write_at(block.file_offset + begin, block.data + begin, some);
  }
  *block.crc32c = crc;
  file.start_sync(block.file_offset, block.bytes);
}

/// Writes slabs on the CPU, and their checksums into the pieces.
void write_on_host(storage::File& file, std::span<const Slab> slabs,
                   std::span<CheckpointReader::Piece> pieces, const SaveOptions& options) {
  std::vector<WrittenBlock> blocks;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    add_blocks(blocks, slabs[i], pieces[i], options.block_bytes);
  }
  run_jobs(blocks.size(), options.writers, [&](std::size_t i) {
    write_block(file, blocks[i]);
    if (options.activity != nullptr) options.activity->beat();
  });
}

void write(storage::File& file, std::span<const Slab> slabs,
           std::span<CheckpointReader::Piece> pieces, const SaveOptions& options) {
  if (!options.fetch) return write_on_host(file, slabs, pieces, options);
  for (const std::span<const Slab> piece : pieces_of(slabs, options.piece_bytes)) {
    const auto begin = static_cast<std::size_t>(piece.data() - slabs.data());
    write_on_host(file, options.fetch(piece), pieces.subspan(begin, piece.size()), options);
  }
}

}  // namespace

Manifest write_rank_file(const std::string& folder, const RankFileHead& head,
                         std::span<const Slab> slabs, const SaveOptions& options) {
  std::vector<Slab> stored;
  for (const Slab& slab : slabs) {
    if (slab.part.count.numel() == 0) continue;
    check(slab, options.fetch != nullptr);
    stored.push_back(slab);
  }
  check_dtypes(stored);
  std::vector<Dataset> datasets = datasets_of(stored);
  const FileLayout layout = lay_out(head, datasets);
  const std::string name = fmt::format("rank_{:05d}.h5", head.rank);

  Manifest mine;
  mine.block_bytes = options.block_bytes;
  mine.files.push_back({name, layout.file_bytes, {}});
  std::vector<CheckpointReader::Piece> pieces = without_checksums(datasets, name);

  storage::File file = storage::File::create(folder + "/" + name);
  file.set_size(layout.file_bytes);
  for (const StructureBlock& part : layout.structure) {
    file.write_at(part.offset, part.bytes.data(), part.bytes.size());
    mine.files.back().structure.push_back(
        {part.offset, part.bytes.size(), crc32c(part.bytes.data(), part.bytes.size())});
  }
  write(file, stored, pieces, options);
  file.sync();
  file.close();
  storage::sync_folder(folder);

  for (std::size_t i = 0; i < stored.size(); ++i) {
    auto& entry = mine.tensors.try_emplace(stored[i].tensor).first->second;
    entry.global_shape = stored[i].global_shape;
    entry.dtype = stored[i].data.dtype();
    entry.pieces.push_back(std::move(pieces[i]));
  }
  return mine;
}

}  // namespace hyperslab::io
