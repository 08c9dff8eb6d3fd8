// SPDX-License-Identifier: Apache-2.0
// HDF5 files with several 1-D datasets, for tests.
#pragma once

#include <hdf5.h>

#include <string>
#include <vector>

namespace hyperslab::test {

struct Hdf5Set {
  std::string name;
  hid_t type;
  std::vector<std::int64_t> values;
};

inline std::string write_hdf5(const std::string& path, const std::vector<Hdf5Set>& sets) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  for (const Hdf5Set& set : sets) {
    const hsize_t extent = set.values.size();
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hid_t out =
        H5Dcreate2(file, set.name.c_str(), set.type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Dwrite(out, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, set.values.data());
    H5Dclose(out), H5Pclose(properties), H5Sclose(space);
  }
  H5Fclose(file);
  return path;
}

}  // namespace hyperslab::test
