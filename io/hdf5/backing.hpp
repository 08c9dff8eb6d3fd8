// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "hdf5/handles.hpp"

namespace hyperslab::io::hdf5 {

/// Reads and writes a file for HDF5 in place of HDF5's own calls. A failure is not reported
/// through HDF5 (version 1.10 crashes at exit after a failed write); the class that implements this
/// keeps it for its user.
class Backing {
 public:
  Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;
  Backing(Backing&&) = delete;
  Backing& operator=(Backing&&) = delete;
  virtual ~Backing() = default;

  virtual void read(std::uint64_t offset, char* out, std::size_t bytes) = 0;  ///< holes are zeros
  virtual void write(std::uint64_t offset, const char* data, std::size_t bytes) = 0;
  virtual void set_size(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::uint64_t size() const = 0;
};

/// Makes file access properties `access` work on `backing`, which must outlive all use of them.
/// There are no locks. False if HDF5 failed.
[[nodiscard]] bool use_backing(const Handle& access, Backing& backing);

}  // namespace hyperslab::io::hdf5
