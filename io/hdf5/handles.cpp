// SPDX-License-Identifier: Apache-2.0
#include "hdf5/handles.hpp"

#include "hdf5/superblock.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io::hdf5 {
namespace {

herr_t keep_innermost(unsigned /*depth*/, const H5E_error2_t* error, void* text) {
  if (error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

}  // namespace

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    if (close() < 0) log::error("HDF5: closing failed: " + last_error());
    id_ = std::exchange(other.id_, H5I_INVALID_HID);
    close_ = other.close_;
  }
  return *this;
}

Handle::~Handle() {
  if (close() < 0) log::error("HDF5: closing failed: " + last_error());
}

herr_t Handle::close() {
  const hid_t id = std::exchange(id_, H5I_INVALID_HID);
  return id >= 0 ? close_(id) : 0;
}

std::string last_error() {
  std::string text = "unknown error";
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  H5Eclear2(H5E_DEFAULT);
  return text;
}

void be_quiet() {
  thread_local const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  (void)quiet;
}

void check(bool good, ExitCode code, const std::string& what) {
  if (!good) throw Error(code, what + ": " + last_error());
}

Handle open_file(const std::string& path) {
  be_quiet();
  // A file may ask for filters that the library would load from wherever its plugins lie.
  H5PLset_loading_state(0);
  if (const std::string problem = superblock_problem(path); !problem.empty()) {
    H5Eclear2(H5E_DEFAULT);
    H5Epush2(H5E_DEFAULT, __FILE__, __func__, __LINE__, H5E_ERR_CLS, H5E_FILE, H5E_BADFILE, "%s",
             problem.c_str());
    return {};
  }
  return {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
}

Handle create_file(const std::string& path) {
  be_quiet();
  return {H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose};
}

}  // namespace hyperslab::io::hdf5
