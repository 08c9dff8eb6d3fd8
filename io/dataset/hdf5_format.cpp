// SPDX-License-Identifier: Apache-2.0
// HDF5 files with a 1-D integer dataset `tokens`, and perhaps `documents` and `loss_mask`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <new>

#include "dataset/shard.hpp"
#include "hdf5/handles.hpp"
#include "hyperslab/core/printable.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Handle;
const char* const kRemedy = "write it with hyperslab tokenize --output FILE.h5";

struct OpenDataset {
  std::string name;
  Handle handle;
  Handle type;
  hsize_t count = 0;
};

bool has_dataset(const Handle& file, const char* name) {
  return H5Lexists(file.get(), name, H5P_DEFAULT) > 0;
}

/// Throws if `name` is a link to somewhere else: the ids are mapped from this file.
void require_hard_link(const Shard& shard, const Handle& file, const char* name) {
  H5L_info_t link{};
  if (H5Lget_info(file.get(), name, &link, H5P_DEFAULT) < 0 || link.type == H5L_TYPE_HARD) return;
  const char* found = "a link of another program's kind";
  if (link.type == H5L_TYPE_SOFT) found = "a soft link";
  if (link.type == H5L_TYPE_EXTERNAL) found = "an external link to another file";
  fail_file(shard.path, fmt::format("the dataset {} itself", name), found,
            "name the file that holds it, or " + std::string(kRemedy));
}

/// Throws if elements are in other files.
void require_own_storage(const Shard& shard, const OpenDataset& dataset) {
  const Handle properties(H5Dget_create_plist(dataset.handle.get()), H5Pclose);
  const char* found = nullptr;
  if (H5Pget_layout(properties.get()) == H5D_VIRTUAL) found = "a virtual dataset, made of others";
  if (H5Pget_external_count(properties.get()) > 0) found = "external raw storage, in other files";
  if (found == nullptr) return;
  fail_file(shard.path, fmt::format("a dataset {} with its elements in this file", dataset.name),
            found, kRemedy);
}

/// Throws for filters other than those that every HDF5 has and whose output is bounded: a plugin of
/// another program, or a decoder that a damaged file could lead astray. Returns by how much the
/// elements may be larger than what is stored.
std::int64_t require_known_filters(const Shard& shard, const OpenDataset& dataset) {
  constexpr std::int64_t kMostOfDeflate = 1032;
  const Handle properties(H5Dget_create_plist(dataset.handle.get()), H5Pclose);
  std::int64_t growth = 1;
  for (int i = 0; i < H5Pget_nfilters(properties.get()); ++i) {
    std::array<char, 64> name{};
    unsigned flags = 0;
    std::size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(properties.get(), static_cast<unsigned>(i), &flags,
                                               &values, nullptr, name.size(), name.data(), nullptr);
    if (filter == H5Z_FILTER_SHUFFLE || filter == H5Z_FILTER_FLETCHER32) continue;
    if (filter != H5Z_FILTER_DEFLATE || growth > 1) {
      name.back() = '\0';
      fail_file(shard.path,
                fmt::format("a dataset {} that is stored as it is, or with shuffle, fletcher32 "
                            "and one deflate (gzip)",
                            dataset.name),
                fmt::format("filter {} ({})", filter, printable(name.data())), kRemedy);
    }
    growth = kMostOfDeflate;
  }
  return growth;
}

/// Throws if the dataset claims more elements, or larger chunks, than the file can hold.
void require_possible_size(const Shard& shard, const OpenDataset& dataset) {
  constexpr hsize_t kMostOfChunk = hsize_t{1} << 30;
  const auto growth = static_cast<hsize_t>(require_known_filters(shard, dataset));
  const hsize_t size = std::max<std::size_t>(H5Tget_size(dataset.type.get()), 1);
  const hsize_t most = static_cast<hsize_t>(shard.file.size()) * growth / size;
  if (dataset.count > most) {
    fail_file(shard.path,
              fmt::format("at most {} elements in the dataset {} of a file of {} bytes", most,
                          dataset.name, shard.file.size()),
              fmt::format("{}", dataset.count), "write the file again");
  }
  const Handle properties(H5Dget_create_plist(dataset.handle.get()), H5Pclose);
  hsize_t chunk = 0;
  if (H5Pget_layout(properties.get()) == H5D_CHUNKED &&
      H5Pget_chunk(properties.get(), 1, &chunk) == 1 && chunk > kMostOfChunk / size) {
    fail_file(shard.path, fmt::format("chunks of at most 1 GiB in the dataset {}", dataset.name),
              fmt::format("{} elements", chunk), kRemedy);
  }
}

/// Whether some chunks were never written; HDF5 reads them as zeros.
bool lacks_chunks(const OpenDataset& dataset) {
#if H5_VERSION_GE(1, 10, 5)
  const Handle properties(H5Dget_create_plist(dataset.handle.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) != H5D_CHUNKED) return false;
  const Handle space(H5Dget_space(dataset.handle.get()), H5Sclose);
  hsize_t chunk = 0;
  hsize_t written = 0;
  const bool known = H5Pget_chunk(properties.get(), 1, &chunk) == 1 && chunk > 0 &&
                     H5Dget_num_chunks(dataset.handle.get(), space.get(), &written) >= 0;
  return known && written < dataset.count / chunk + (dataset.count % chunk > 0 ? 1 : 0);
#else
  (void)dataset;
  return false;
#endif
}

/// Throws if elements were never written.
void require_written(const Shard& shard, const OpenDataset& dataset) {
  if (dataset.count == 0) return;
  H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
  H5Dget_space_status(dataset.handle.get(), &status);
  const bool none = status == H5D_SPACE_STATUS_NOT_ALLOCATED;
  if (!none && !lacks_chunks(dataset)) return;
  fail_file(shard.path, fmt::format("{} elements in the dataset {}", dataset.count, dataset.name),
            none ? "that it was never written" : "that parts of it were never written",
            "write the file again");
}

OpenDataset open_dataset(const Shard& shard, const Handle& file, const char* name) {
  OpenDataset dataset;
  dataset.name = name;
  if (has_dataset(file, name)) {
    require_hard_link(shard, file, name);
    dataset.handle = Handle(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  }
  if (!dataset.handle) {
    fail_file(shard.path, fmt::format("a dataset named {}", name),
              "none (" + hdf5::last_error() + ")", kRemedy);
  }
  dataset.type = Handle(H5Dget_type(dataset.handle.get()), H5Tclose);
  const Handle space(H5Dget_space(dataset.handle.get()), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank != 1) {
    fail_file(shard.path, fmt::format("a 1-D dataset {}", name), fmt::format("{} dimensions", rank),
              kRemedy);
  }
  H5Sget_simple_extent_dims(space.get(), &dataset.count, nullptr);
  require_own_storage(shard, dataset);
  return dataset;
}

OpenDataset open_integers(const Shard& shard, const Handle& file, const char* name) {
  OpenDataset dataset = open_dataset(shard, file, name);
  if (H5Tget_class(dataset.type.get()) != H5T_INTEGER || H5Tget_size(dataset.type.get()) > 8) {
    fail_file(shard.path, fmt::format("integers in the dataset {}", name),
              "another type of element", kRemedy);
  }
  return dataset;
}

bool is(const Handle& type, hid_t other) { return H5Tequal(type.get(), other) > 0; }

/// Where the elements lie in the file in one piece, or -1.
std::int64_t offset_in_file(const OpenDataset& dataset) {
  const Handle properties(H5Dget_create_plist(dataset.handle.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS) return -1;
  const haddr_t address = H5Dget_offset(dataset.handle.get());
  return address == HADDR_UNDEF ? -1 : static_cast<std::int64_t>(address);
}

/// Sets type and offset if the ids lie in the file in one piece and in this machine's order.
bool map_in_place(Shard& shard, const OpenDataset& dataset) {
  if (is(dataset.type, H5T_STD_U16LE)) {
    shard.type = IdType::u16;
  } else if (is(dataset.type, H5T_STD_U32LE)) {
    shard.type = IdType::u32;
  } else if (is(dataset.type, H5T_STD_I32LE)) {
    shard.type = IdType::i32;
  } else if (is(dataset.type, H5T_STD_I64LE)) {
    shard.type = IdType::i64;
  } else {
    return false;
  }
  shard.offset = offset_in_file(dataset);
  if (shard.offset < 0) return false;
  if (shard.count > (shard.file.size() - shard.offset) / size_of(shard.type)) {
    fail_file(shard.path,
              fmt::format("{} tokens of {} bytes from byte {} on", shard.count, size_of(shard.type),
                          shard.offset),
              fmt::format("{} bytes", shard.file.size()), "copy or write the file again");
  }
  return true;
}

/// Takes memory for elements that HDF5 is to convert, if the file can hold so many.
void allocate(const Shard& shard, const OpenDataset& dataset, std::int64_t bytes,
              std::vector<std::byte>& memory) {
  constexpr std::int64_t kMostTokens = 1LL << 44;  // beyond the memory of any machine
  const auto fail = [&] {
    fail_file(shard.path, "a chunked dataset that fits in memory",
              fmt::format("{} tokens", shard.count),
              "write it contiguous and little-endian, or as .bin");
  };
  if (shard.count > kMostTokens) fail();
  require_written(shard, dataset);
  require_possible_size(shard, dataset);
  try {
    memory.resize(static_cast<std::size_t>(bytes));
  } catch (const std::bad_alloc&) {
    fail();
  }
}

void read_all(const Shard& shard, const OpenDataset& dataset, hid_t type, void* out) {
  if (H5Dread(dataset.handle.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
    fail_file(shard.path, fmt::format("{} readable elements", dataset.count),
              "HDF5's error '" + hdf5::last_error() + "'", "copy or write the file again");
  }
}

/// Chunked, compressed, big-endian or unusual integers: HDF5 converts them once, into memory.
void read_to_memory(Shard& shard, const OpenDataset& dataset) {
  const bool is_signed = H5Tget_sign(dataset.type.get()) == H5T_SGN_2;
  const std::size_t bytes = H5Tget_size(dataset.type.get());
  hid_t native = H5T_NATIVE_INT64;
  shard.type = IdType::i64;
  if (!is_signed && bytes <= 2) {
    native = H5T_NATIVE_UINT16, shard.type = IdType::u16;
  } else if (bytes <= 4) {
    native = is_signed ? H5T_NATIVE_INT32 : H5T_NATIVE_UINT32;
    shard.type = is_signed ? IdType::i32 : IdType::u32;
  }
  shard.offset = -1;
  allocate(shard, dataset, shard.bytes(), shard.memory);
  read_all(shard, dataset, native, shard.memory.data());
}

/// One byte a token: integers or, as h5py writes bool, an enumeration.
void read_mask(Shard& shard, const Handle& file) {
  const OpenDataset dataset = open_dataset(shard, file, "loss_mask");
  const H5T_class_t kind = H5Tget_class(dataset.type.get());
  const std::size_t bytes = H5Tget_size(dataset.type.get());
  if ((kind != H5T_INTEGER && kind != H5T_ENUM) || bytes != 1) {
    fail_file(shard.path, "a dataset loss_mask of uint8",
              fmt::format("elements of {} bytes of another type", bytes), "write it as uint8");
  }
  if (static_cast<std::int64_t>(dataset.count) != shard.count) {
    fail_file(shard.path, fmt::format("a dataset loss_mask of {} bytes, one a token", shard.count),
              fmt::format("{}", dataset.count), "write tokens and mask again");
  }
  shard.has_mask = true;
  shard.mask_offset = offset_in_file(dataset);
  if (shard.mask_offset >= 0 && shard.count <= shard.file.size() - shard.mask_offset) return;
  shard.mask_offset = -1;
  allocate(shard, dataset, shard.count, shard.mask_memory);
  read_all(shard, dataset, dataset.type.get(), shard.mask_memory.data());
}

Handle open_hdf5(const Shard& shard) {
  Handle file = hdf5::open_file(shard.path);
  if (!file) {
    fail_file(shard.path, "an HDF5 file", "HDF5's error '" + hdf5::last_error() + "'",
              "copy or write the file again");
  }
  return file;
}

}  // namespace

bool has_hdf5_signature(const Shard& shard) {
  constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
  const auto bytes = shard.file.bytes();
  return bytes.size() >= 8 && std::memcmp(bytes.data(), kSignature, 8) == 0;
}

void read_hdf5_tokens(Shard& shard, bool loss_mask) {
  const Handle file = open_hdf5(shard);
  const OpenDataset dataset = open_integers(shard, file, "tokens");
  shard.count = static_cast<std::int64_t>(dataset.count);
  if (!map_in_place(shard, dataset)) read_to_memory(shard, dataset);
  if (loss_mask && has_dataset(file, "loss_mask")) read_mask(shard, file);
  if (shard.offset < 0 && shard.mask_offset < 0) shard.file = MappedFile();
  shard.format = fmt::format("HDF5 {}", name_of(shard.type));
}

std::vector<std::int64_t> read_hdf5_documents(const Shard& shard) {
  const Handle file = open_hdf5(shard);
  if (!has_dataset(file, "documents")) return {};
  const OpenDataset dataset = open_integers(shard, file, "documents");
  std::vector<std::int64_t> starts;  // left empty if more documents than tokens are damage
  if (static_cast<std::int64_t>(dataset.count) <= shard.count) {
    require_written(shard, dataset);
    require_possible_size(shard, dataset);
    starts.resize(dataset.count);
    read_all(shard, dataset, H5T_NATIVE_INT64, starts.data());
  }
  const bool ascending = std::ranges::adjacent_find(starts, std::greater_equal()) == starts.end();
  if (starts.empty() || starts.front() != 0 || starts.back() >= shard.count || !ascending) {
    fail_file(shard.path,
              fmt::format("starts of documents that ascend from 0 and are below {}", shard.count),
              fmt::format("{} other numbers in the dataset documents", dataset.count), kRemedy);
  }
  return starts;
}

}  // namespace hyperslab::io
