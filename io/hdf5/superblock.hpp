// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hyperslab::io::hdf5 {

/// Bytes of the longest superblock (version 1 with eight-byte addresses, and its root entry).
constexpr std::size_t kMostOfSuperblock = 100;

/// Says what is wrong with an HDF5 superblock, or nothing ("") if the library may read it. Older
/// libraries crash, or take gigabytes of memory, for superblocks that they do not check: it must be
/// at byte 0, of version 0 to 3, with addresses of eight bytes that lie in the file, trees of
/// ordinary width and no driver information ("HDF5 File Format Specification" 3.0, II.A).
/// `head`: the first bytes of the file, kMostOfSuperblock or all there are; `file_bytes`: its size.
[[nodiscard]] std::string superblock_problem(std::span<const std::byte> head,
                                             std::uint64_t file_bytes);

/// Checks the file at `path`; "" also if it cannot be read, which the library itself reports.
[[nodiscard]] std::string superblock_problem(const std::string& path);

}  // namespace hyperslab::io::hdf5
