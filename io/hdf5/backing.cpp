// SPDX-License-Identifier: Apache-2.0
#include "hdf5/backing.hpp"

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif

#include <algorithm>
#include <exception>
#include <new>

namespace hyperslab::io::hdf5 {
namespace {

/// HDF5 gives open() a copy of this.
struct DriverInfo {
  Backing* backing = nullptr;
};

/// An open file of the driver; HDF5 wants its own part first.
struct OpenFile {
  H5FD_t base{};
  Backing* backing = nullptr;
  haddr_t end_of_allocation = 0;
};

OpenFile& opened(const H5FD_t* file) {
  return *reinterpret_cast<OpenFile*>(const_cast<H5FD_t*>(file));
}

H5FD_t* driver_open(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*limit*/) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info == nullptr) return nullptr;
  auto* file = new (std::nothrow) OpenFile;
  if (file == nullptr) return nullptr;
  file->backing = info->backing;
  return &file->base;
}

herr_t driver_close(H5FD_t* file) {
  delete &opened(file);
  return 0;
}

herr_t driver_query(const H5FD_t* /*file*/, unsigned long* flags) {
  *flags =
      H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t get_end_of_allocation(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return opened(file).end_of_allocation;
}

herr_t set_end_of_allocation(H5FD_t* file, H5FD_mem_t /*type*/, haddr_t address) {
  opened(file).end_of_allocation = address;
  return 0;
}

haddr_t get_end_of_file(const H5FD_t* file, H5FD_mem_t /*type*/) {
  return opened(file).backing->size();
}

herr_t driver_read(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                   std::size_t bytes, void* out) {
  opened(file).backing->read(address, static_cast<char*>(out), bytes);
  return 0;
}

herr_t driver_write(H5FD_t* file, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                    std::size_t bytes, const void* data) {
  try {
    opened(file).backing->write(address, static_cast<const char*>(data), bytes);
    return 0;
  } catch (const std::exception&) {  // out of memory; no exception may pass HDF5
    return -1;
  }
}

herr_t driver_truncate(H5FD_t* file, hid_t /*transfer*/, hbool_t /*closing*/) {
  opened(file).backing->set_size(opened(file).end_of_allocation);
  return 0;
}

hid_t register_driver() {
  static const H5FD_mem_t one_list[H5FD_MEM_NTYPES] = H5FD_FLMAP_SINGLE;
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(300);  // a value that is free for programs
#endif
  driver.name = "hyperslab_backing";
  driver.maxaddr = (haddr_t{1} << 62);
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = driver_open;
  driver.close = driver_close;
  driver.query = driver_query;
  driver.get_eoa = get_end_of_allocation;
  driver.set_eoa = set_end_of_allocation;
  driver.get_eof = get_end_of_file;
  driver.read = driver_read;
  driver.write = driver_write;
  driver.truncate = driver_truncate;
  std::ranges::copy(one_list, driver.fl_map);
  return H5FDregister(&driver);
}

}  // namespace

bool use_backing(const Handle& access, Backing& backing) {
  static const hid_t driver = register_driver();
  const DriverInfo info{&backing};
  return driver >= 0 && H5Pset_driver(access.get(), driver, &info) >= 0;
}

}  // namespace hyperslab::io::hdf5
