// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/core/hyperslab.hpp"

namespace hyperslab::io {

/// One contiguous dataset of a rank's file.
struct Dataset {
  std::string tensor;  ///< path of the group, made with its parents
  std::string name;    ///< "slab_0"
  Shape global_shape;
  Hyperslab part;
  DType dtype = DType::f32;
  std::uint64_t file_offset = 0;  ///< set by lay_out: where the raw data begin
};

/// Attributes of a rank file's root, beside its format.
struct RankFileHead {
  std::int64_t step = 0;
  int rank = 0;
  std::string layout;  ///< text that names the layout of the ranks that wrote the checkpoint
};

/// Bytes that HDF5 itself wants in the file: superblock, groups, headers, attributes.
struct StructureBlock {
  std::uint64_t offset = 0;
  std::string bytes;
};

struct FileLayout {
  std::uint64_t file_bytes = 0;
  std::vector<StructureBlock> structure;  ///< ascending, without the raw data
};

/// Lets HDF5 lay out a file with this head and these datasets and reports the offset of everything.
/// HDF5 works on a sparse file in memory and never touches the disk: it has no crash consistency,
/// and version 1.10 crashes at exit when a close failed for lack of space. Who calls writes the
/// structure and the data with calls whose errors can be trusted. No dataset is empty. Throws
/// Error(storage).
[[nodiscard]] FileLayout lay_out(const RankFileHead& head, std::vector<Dataset>& datasets);

}  // namespace hyperslab::io
