// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "hdf5/backing.hpp"

namespace hyperslab::io::hdf5 {

/// A file in memory. Only pages that were written take memory, so datasets whose raw data are never
/// written through HDF5 cost nothing.
class SparseFile final : public Backing {
 public:
  static constexpr std::uint64_t kPageBytes = 512;

  void read(std::uint64_t offset, char* out, std::size_t bytes) override;
  void write(std::uint64_t offset, const char* data, std::size_t bytes) override;
  void set_size(std::uint64_t bytes) override { bytes_ = bytes; }
  [[nodiscard]] std::uint64_t size() const override { return bytes_; }

  struct Extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  /// The written pages, ascending; adjacent pages are one extent.
  [[nodiscard]] std::vector<Extent> written() const;

 private:
  std::map<std::uint64_t, std::array<char, kPageBytes>> pages_;
  std::uint64_t bytes_ = 0;
};

}  // namespace hyperslab::io::hdf5
