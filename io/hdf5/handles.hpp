// SPDX-License-Identifier: Apache-2.0
// RAII over the HDF5 C API; private to io, the only module that knows HDF5.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io::hdf5 {

/// Owns an HDF5 identifier. A destructor never throws: a close that fails is logged; call `close()`
/// if the result matters (a full disk may show only there).
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close closer) : id_(id), close_(closer) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  [[nodiscard]] hid_t get() const { return id_; }
  [[nodiscard]] explicit operator bool() const { return id_ >= 0; }
  /// Closes now; negative if HDF5 failed.
  herr_t close();

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// The text of the innermost error on HDF5's stack, which is cleared: "unable to open file".
[[nodiscard]] std::string last_error();
/// Keeps HDF5 from printing its error stack to stderr; once per thread.
void be_quiet();

/// Throws Error(code) "<what>: <last_error()>" if `good` is false.
void check(bool good, ExitCode code, const std::string& what);

/// Opens for reading. Empty on failure, also where the superblock is not one that the library may
/// be shown (superblock.hpp); last_error() says why.
[[nodiscard]] Handle open_file(const std::string& path);
[[nodiscard]] Handle create_file(const std::string& path);  ///< replaces; empty on failure

}  // namespace hyperslab::io::hdf5
