// SPDX-License-Identifier: Apache-2.0
#include "hdf5/attributes.hpp"

namespace hyperslab::io::hdf5 {
namespace {

void write(const Handle& object, const char* name, hid_t stored, hid_t in_memory,
           const void* value) {
  const std::string what = std::string("attribute ") + name;
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(object.get(), name, stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  check(static_cast<bool>(attribute), ExitCode::storage, what);
  check(H5Awrite(attribute.get(), in_memory, value) >= 0, ExitCode::storage, what);
}

}  // namespace

void set_attribute(const Handle& object, const char* name, std::int64_t value) {
  write(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

void set_attribute(const Handle& object, const char* name, const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const char* text = value.c_str();
  write(object, name, type.get(), type.get(), &text);
}

}  // namespace hyperslab::io::hdf5
