// SPDX-License-Identifier: Apache-2.0
// Reads datasets of integers and floats without HDF5's library, which crashes on damaged files:
// superblocks of version 0 to 3, groups of few links or with a symbol table, elements that are
// compact or contiguous. Everything else is refused by its name.
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
  bool is_float32 = false;  ///< IEEE binary32
  bool is_signed = false;
  bool is_big_endian = false;
  std::size_t bytes = 0;  ///< size of an element of any type
};

/// Storage of the elements in the file.
struct Storage {
  enum class Kind : std::uint8_t { compact, contiguous };
  Kind kind = Kind::contiguous;
  std::uint64_t address = kUndefinedAddress;  ///< begin of contiguous elements
  std::span<const std::byte> bytes;           ///< compact elements
};

struct Dataset {
  std::string name;
  std::uint64_t count = 0;    ///< elements
  std::uint64_t columns = 1;  ///< elements of a row, with two dimensions
  ElementType type;
  Storage storage;
};

/// The dataset `name` of the root group; nothing if there is none. Throws Error(data) for one that
/// is damaged, elsewhere than in this file, of other than `dimensions` dimensions (1 or 2), or
/// stored in a way that is not read.
[[nodiscard]] std::optional<Dataset> find_dataset(const Source& source, const std::string& name,
                                                  std::uint64_t dimensions = 1);

/// Throws Error(data) if elements were never written, or if there are more than the file can hold,
/// so that memory for the others may be taken.
void require_elements(const Source& source, const Dataset& dataset);

/// The elements as they are stored; `out` has count * type.bytes bytes. require_elements() comes
/// first. Throws Error(data).
void read_elements(const Source& source, const Dataset& dataset, std::span<std::byte> out);

}  // namespace hyperslab::io::hdf5
