// SPDX-License-Identifier: Apache-2.0
// HDF5 files with a 1-D integer dataset `tokens`.
#include <fmt/format.h>

#include <cstring>
#include <new>

#include "dataset/shard.hpp"
#include "hdf5/handles.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Handle;
const char* const kRemedy = "write it with hyperslab tokenize --output FILE.h5";

struct Layout {
  Handle dataset;
  Handle type;
  hsize_t count = 0;
};

Layout open_dataset(const Shard& shard, const Handle& file) {
  Layout layout;
  if (H5Lexists(file.get(), "tokens", H5P_DEFAULT) > 0) {
    layout.dataset = Handle(H5Dopen2(file.get(), "tokens", H5P_DEFAULT), H5Dclose);
  }
  if (!layout.dataset) {
    fail_file(shard.path, "a dataset named tokens", "none (" + hdf5::last_error() + ")", kRemedy);
  }
  layout.type = Handle(H5Dget_type(layout.dataset.get()), H5Tclose);
  if (H5Tget_class(layout.type.get()) != H5T_INTEGER || H5Tget_size(layout.type.get()) > 8) {
    fail_file(shard.path, "integers in the dataset tokens", "another type of element", kRemedy);
  }
  const Handle space(H5Dget_space(layout.dataset.get()), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank != 1) {
    fail_file(shard.path, "a 1-D dataset tokens", fmt::format("{} dimensions", rank), kRemedy);
  }
  H5Sget_simple_extent_dims(space.get(), &layout.count, nullptr);
  return layout;
}

bool is(const Handle& type, hid_t other) { return H5Tequal(type.get(), other) > 0; }

/// Sets type and offset where the ids lie in the file in one piece and in this machine's order.
bool map_in_place(Shard& shard, const Layout& layout) {
  if (is(layout.type, H5T_STD_U16LE)) {
    shard.type = IdType::u16;
  } else if (is(layout.type, H5T_STD_U32LE)) {
    shard.type = IdType::u32;
  } else if (is(layout.type, H5T_STD_I32LE)) {
    shard.type = IdType::i32;
  } else if (is(layout.type, H5T_STD_I64LE)) {
    shard.type = IdType::i64;
  } else {
    return false;
  }
  const Handle properties(H5Dget_create_plist(layout.dataset.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS ||
      H5Pget_external_count(properties.get()) != 0) {
    return false;
  }
  const haddr_t address = H5Dget_offset(layout.dataset.get());
  if (address == HADDR_UNDEF) return false;
  shard.offset = static_cast<std::int64_t>(address);
  if (shard.count > (shard.file.size() - shard.offset) / size_of(shard.type)) {
    fail_file(shard.path,
              fmt::format("{} tokens of {} bytes from byte {} on", shard.count, size_of(shard.type),
                          shard.offset),
              fmt::format("{} bytes", shard.file.size()), "copy or write the file again");
  }
  return true;
}

void allocate(Shard& shard) {
  constexpr std::int64_t kLargest = 1LL << 44;  // beyond the memory of any machine
  try {
    if (shard.count > kLargest) throw std::bad_alloc();
    shard.memory.resize(static_cast<std::size_t>(shard.bytes()));
  } catch (const std::bad_alloc&) {
    fail_file(shard.path, "a chunked dataset that fits in memory",
              fmt::format("{} tokens", shard.count),
              "write it contiguous and little-endian, or as .bin");
  }
}

/// Chunked, compressed, big-endian or unusual integers: HDF5 converts them once, into memory.
void read_to_memory(Shard& shard, const Layout& layout) {
  const bool is_signed = H5Tget_sign(layout.type.get()) == H5T_SGN_2;
  const std::size_t bytes = H5Tget_size(layout.type.get());
  hid_t native = H5T_NATIVE_INT64;
  shard.type = IdType::i64;
  if (!is_signed && bytes <= 2) {
    native = H5T_NATIVE_UINT16, shard.type = IdType::u16;
  } else if (bytes <= 4) {
    native = is_signed ? H5T_NATIVE_INT32 : H5T_NATIVE_UINT32;
    shard.type = is_signed ? IdType::i32 : IdType::u32;
  }
  shard.offset = -1;
  allocate(shard);
  if (H5Dread(layout.dataset.get(), native, H5S_ALL, H5S_ALL, H5P_DEFAULT, shard.memory.data()) <
      0) {
    fail_file(shard.path, fmt::format("{} readable tokens", shard.count),
              "HDF5's error '" + hdf5::last_error() + "'", "copy or write the file again");
  }
  shard.file = MappedFile();
}

}  // namespace

bool has_hdf5_signature(const Shard& shard) {
  constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
  const auto bytes = shard.file.bytes();
  return bytes.size() >= 8 && std::memcmp(bytes.data(), kSignature, 8) == 0;
}

void read_hdf5_tokens(Shard& shard) {
  const Handle file = hdf5::open_file(shard.path);
  if (!file) {
    fail_file(shard.path, "an HDF5 file", "HDF5's error '" + hdf5::last_error() + "'",
              "copy or write the file again");
  }
  const Layout layout = open_dataset(shard, file);
  shard.count = static_cast<std::int64_t>(layout.count);
  if (!map_in_place(shard, layout)) read_to_memory(shard, layout);
  shard.format = fmt::format("HDF5 {}", name_of(shard.type));
}

}  // namespace hyperslab::io
