// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <string>

#include "support/tensors.hpp"

namespace hyperslab::test {

/// Reads attributes and datasets of one golden file.
class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(H5Fopen((HYPERSLAB_GOLDEN "/" + name + ".h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)) {
  }
  ~Golden() { H5Fclose(file_); }
  Golden(const Golden&) = delete;
  Golden& operator=(const Golden&) = delete;
  Golden(Golden&&) = delete;
  Golden& operator=(Golden&&) = delete;

  [[nodiscard]] double number(const char* name) const {
    double value = 0;
    const hid_t attribute = H5Aopen(file_, name, H5P_DEFAULT);
    EXPECT_GE(H5Aread(attribute, H5T_NATIVE_DOUBLE, &value), 0) << name;
    H5Aclose(attribute);
    return value;
  }
  [[nodiscard]] Dim dim(const char* name) const { return static_cast<Dim>(number(name)); }
  [[nodiscard]] std::string text(const char* name) const {
    const hid_t attribute = H5Aopen(file_, name, H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute);
    std::string value(H5Tget_size(type), '\0');
    EXPECT_GE(H5Aread(attribute, type, value.data()), 0) << name;
    H5Tclose(type);
    H5Aclose(attribute);
    return value.c_str();
  }
  [[nodiscard]] bool has(const std::string& path) const {
    return H5Lexists(file_, path.c_str(), H5P_DEFAULT) > 0;
  }
  [[nodiscard]] Tensor read(const std::string& path, DType dtype = DType::f64) const {
    const hid_t dataset = H5Dopen2(file_, path.c_str(), H5P_DEFAULT);
    const hid_t space = H5Dget_space(dataset);
    std::array<hsize_t, kMaxRank> sizes{};
    const int rank = H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
    std::array<Dim, kMaxRank> dims{};
    std::copy(sizes.begin(), sizes.end(), dims.begin());
    Tensor out(Device::cpu, dtype,
               Shape(std::span<const Dim>(dims.data(), static_cast<std::size_t>(rank))));
    const hid_t type = dtype == DType::i32 ? H5T_NATIVE_INT32 : H5T_NATIVE_DOUBLE;
    EXPECT_GE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out.view().raw()), 0) << path;
    H5Sclose(space);
    H5Dclose(dataset);
    return out;
  }

 private:
  hid_t file_;
};

/// The golden files divide by the count in double; the state holds it in f32, hence 1e-7 in f64.
[[nodiscard]] inline double golden_tolerance(DType compute) {
  return compute == DType::f64 ? 2e-7 : tolerance(DType::f32);
}

}  // namespace hyperslab::test
