// SPDX-License-Identifier: Apache-2.0
#include <hdf5.h>

#include "hyperslab/io/hdf5_version.hpp"

namespace hyperslab::io {

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0) return "HDF5";
  return "HDF5 " + std::to_string(major) + "." + std::to_string(minor) + "." +
         std::to_string(release);
}

}  // namespace hyperslab::io
