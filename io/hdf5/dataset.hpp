// SPDX-License-Identifier: Apache-2.0
// Reads 1-D datasets of integers without HDF5's library, which crashes on damaged files. Read are:
// superblocks of version 0 to 3, groups of few links or with a symbol table, elements that are
// compact, contiguous or in chunks (with a B-tree of version 1, a single chunk, a fixed array, or
// none), and the filters shuffle, fletcher32 and one deflate. Everything else is refused by its
// name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hdf5/source.hpp"

namespace hyperslab::io::hdf5 {

struct ElementType {
  bool is_integer = false;  ///< integers of 1, 2, 4 or 8 whole bytes
  bool is_enum = false;     ///< enumeration of such integers, as h5py writes bool
  bool is_signed = false;
  bool is_big_endian = false;
  std::size_t bytes = 0;  ///< size of an element of any type
};

enum class FilterKind : std::uint8_t { deflate = 1, shuffle = 2, fletcher32 = 3 };

enum class ChunkIndex : std::uint8_t { tree, single, implicit, fixed_array };

/// Storage of the elements in the file.
struct Storage {
  enum class Kind : std::uint8_t { compact, contiguous, chunked };
  Kind kind = Kind::contiguous;
  std::uint64_t address = kUndefinedAddress;  ///< begin of elements, or of the index of chunks
  std::span<const std::byte> bytes;           ///< compact elements
  std::uint64_t chunk = 0;                    ///< elements of a chunk
  ChunkIndex index = ChunkIndex::tree;
  std::uint64_t single_bytes = 0;  ///< stored, of a single filtered chunk
  std::uint32_t single_mask = 0;   ///< filters that it has not been through
  std::vector<FilterKind> filters;
};

struct Dataset {
  std::string name;
  std::uint64_t count = 0;  ///< elements
  ElementType type;
  Storage storage;
};

/// The dataset `name` of the root group; nothing if there is none. Throws Error(data) for one that
/// is damaged, elsewhere than in this file, of several dimensions, or stored in a way that is not
/// read.
[[nodiscard]] std::optional<Dataset> find_dataset(const Source& source, const std::string& name);

/// Throws Error(data) if elements were never written, or if there are more than the file can hold,
/// so that memory for the others may be taken.
void require_elements(const Source& source, const Dataset& dataset);

/// The elements as they are stored; `out` has count * type.bytes bytes. require_elements() comes
/// first. Throws Error(data).
void read_elements(const Source& source, const Dataset& dataset, std::span<std::byte> out);

/// A chunk in the file.
struct Chunk {
  std::uint64_t index = 0;  ///< first element / elements of a chunk
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< stored
  std::uint32_t mask = 0;   ///< bit i: it has not been through filter i
};
/// All chunks of a dataset, ascending; fewer than its elements need if some were never written.
[[nodiscard]] std::vector<Chunk> chunks_of(const Source& source, const Dataset& dataset);

/// Chunks that `count` elements need.
[[nodiscard]] std::uint64_t needed_chunks(const Dataset& dataset);

/// The elements of one chunk, unfiltered.
[[nodiscard]] std::vector<std::byte> unfiltered(const Source& source, const Dataset& dataset,
                                                const Chunk& chunk);

}  // namespace hyperslab::io::hdf5
