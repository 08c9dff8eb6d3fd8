// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/layout.hpp"

#include <algorithm>
#include <array>
#include <mutex>

#include "checkpoint/dtypes.hpp"
#include "hdf5/attributes.hpp"
#include "hdf5/sparse_file.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Handle;
using hdf5::SparseFile;

constexpr hsize_t kAlignFrom = 64 << 10;  // datasets of this size and more begin on a page
constexpr hsize_t kAlignment = 4096;
constexpr hsize_t kStructureBytes = 64 << 10;  // keeps the structure together, in few blocks

void check(bool good, const std::string& what) {
  hdf5::check(good, ExitCode::storage, "laying out a checkpoint file: " + what);
}

/// Properties of objects that hold no time of day: equal checkpoints are equal files.
Handle without_times(hid_t kind) {
  Handle properties(H5Pcreate(kind), H5Pclose);
  check(H5Pset_obj_track_times(properties.get(), false) >= 0, "no times");
  return properties;
}

Handle create(SparseFile& memory) {
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  check(hdf5::use_backing(access, memory), "driver");
  check(H5Pset_alignment(access.get(), kAlignFrom, kAlignment) >= 0, "alignment");
  check(H5Pset_meta_block_size(access.get(), kStructureBytes) >= 0, "block size");
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18) >= 0, "format bounds");
  const Handle creation = without_times(H5P_FILE_CREATE);
  Handle file(H5Fcreate("checkpoint", H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose);
  check(static_cast<bool>(file), "creating the file");
  return file;
}

Handle dataspace_of(const Shape& shape) {
  if (shape.rank() == 0) return {H5Screate(H5S_SCALAR), H5Sclose};
  std::array<hsize_t, kMaxRank> dims{};
  std::ranges::copy(shape.dims(), dims.begin());
  return {H5Screate_simple(shape.rank(), dims.data(), nullptr), H5Sclose};
}

void write_attribute(const Handle& dataset, const char* name, const Shape& value) {
  const hsize_t size = static_cast<hsize_t>(value.rank());
  const Handle space(size == 0 ? H5Screate(H5S_NULL) : H5Screate_simple(1, &size, nullptr),
                     H5Sclose);
  const Handle attribute(
      H5Acreate2(dataset.get(), name, H5T_STD_I64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  check(static_cast<bool>(attribute), name);
  if (size == 0) return;
  check(H5Awrite(attribute.get(), H5T_NATIVE_INT64, value.dims().data()) >= 0, name);
}

/// Makes the groups on the way to `path` that are not there.
void add_groups(const Handle& file, const Handle& creation, const std::string& path) {
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string name = path.substr(0, end);
    if (H5Lexists(file.get(), name.c_str(), H5P_DEFAULT) > 0) continue;
    const Handle group(
        H5Gcreate2(file.get(), name.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Gclose);
    check(static_cast<bool>(group), name);
  }
}

/// The type of a dataset's elements. HDF5 names none of 16 bits, so f16 is made as h5py makes it:
/// sign at bit 15, 5 bits of exponent with a bias of 15, 10 of mantissa, little-endian.
Handle type_of(DType dtype) {
  const hid_t like = dtype == DType::u8 ? H5T_STD_U8LE : H5T_IEEE_F32LE;
  Handle type(H5Tcopy(like), H5Tclose);
  check(static_cast<bool>(type), "type of elements");
  if (dtype == DType::f16) {
    check(H5Tset_fields(type.get(), 15, 10, 5, 0, 10) >= 0, "fields of f16");
    check(H5Tset_size(type.get(), size_of(dtype)) >= 0, "size of f16");
    check(H5Tset_ebias(type.get(), 15) >= 0, "bias of f16");
  }
  return type;
}

void add_dataset(const Handle& file, const Handle& creation, Dataset& data) {
  const std::string path = data.tensor + "/" + data.name;
  const Handle space = dataspace_of(data.part.count);
  const Handle type = type_of(data.dtype);
  const Handle dataset(H5Dcreate2(file.get(), path.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       H5Dclose);
  check(static_cast<bool>(dataset), path);
  write_attribute(dataset, "global_shape", data.global_shape);
  write_attribute(dataset, "offset", data.part.offset);
  write_attribute(dataset, "count", data.part.count);
  const haddr_t address = H5Dget_offset(dataset.get());
  check(address != HADDR_UNDEF, path + ": no offset was given");
  data.file_offset = address;
}

void write_head(const Handle& file, const RankFileHead& head, int format) {
  hdf5::set_attribute(file, "format", "hyperslab checkpoint");
  hdf5::set_attribute(file, "format_version", format);
  hdf5::set_attribute(file, "step", head.step);
  hdf5::set_attribute(file, "rank", head.rank);
  hdf5::set_attribute(file, "layout", head.layout);
}

void write_file(SparseFile& memory, const RankFileHead& head, std::vector<Dataset>& datasets) {
  static std::mutex hdf5_mutex;  // serial HDF5 libraries are often not thread-safe
  const std::lock_guard lock(hdf5_mutex);
  hdf5::be_quiet();
  Handle file = create(memory);
  int format = format_of(DType::f32);
  for (const Dataset& dataset : datasets) format = std::max(format, format_of(dataset.dtype));
  write_head(file, head, format);
  {
    const Handle groups = without_times(H5P_GROUP_CREATE);
    const Handle creation = without_times(H5P_DATASET_CREATE);
    check(H5Pset_layout(creation.get(), H5D_CONTIGUOUS) >= 0, "contiguous datasets");
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY) >= 0, "early allocation");
    check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) >= 0, "no fill values");
    for (Dataset& dataset : datasets) {
      add_groups(file, groups, dataset.tensor + "/");
      add_dataset(file, creation, dataset);
    }
  }
  check(file.close() >= 0, "closing the file");
}

std::string bytes_of(SparseFile& file, std::uint64_t begin, std::uint64_t end) {
  std::string bytes(end - begin, '\0');
  file.read(begin, bytes.data(), bytes.size());
  return bytes;
}

/// Returns the pages that HDF5 wrote, less the ranges of the raw data in them.
std::vector<StructureBlock> structure_of(SparseFile& file, std::vector<Dataset> datasets) {
  std::ranges::sort(datasets, {}, &Dataset::file_offset);
  std::vector<StructureBlock> structure;
  auto next = datasets.begin();
  for (const auto& [begin, end] : file.written()) {
    std::uint64_t from = begin;
    const auto keep_until = [&](std::uint64_t to) {
      if (to > from) structure.push_back({from, bytes_of(file, from, to)});
    };
    for (; next != datasets.end() && next->file_offset < end; ++next) {
      keep_until(next->file_offset);
      from = std::max(from, next->file_offset + bytes_of_part(next->part, next->dtype));
      if (from >= end) break;  // this dataset may reach into the next written pages
    }
    keep_until(end);
  }
  return structure;
}

}  // namespace

FileLayout lay_out(const RankFileHead& head, std::vector<Dataset>& datasets) {
  SparseFile file;
  write_file(file, head, datasets);
  return {file.size(), structure_of(file, datasets)};
}

}  // namespace hyperslab::io
