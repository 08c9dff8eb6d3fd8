// SPDX-License-Identifier: Apache-2.0
// HDF5 files with a 1-D integer dataset `tokens`, and perhaps `documents` and `loss_mask`; read
// without HDF5's library, which is not made for files of strangers.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

#include "dataset/shard.hpp"
#include "hdf5/dataset.hpp"
#include "hdf5/superblock.hpp"

namespace hyperslab::io {
namespace {

using hdf5::Dataset;
using hdf5::ElementType;
using hdf5::Source;
using hdf5::Storage;
const char* const kHdf5Remedy = "write it with hyperslab tokenize --output FILE.h5";

Source open_hdf5(const Shard& shard) {
  const auto bytes = shard.file.bytes();
  const auto head = bytes.first(std::min(bytes.size(), hdf5::kMostOfSuperblock));
  if (const std::string problem = hdf5::superblock_problem(head, bytes.size()); !problem.empty()) {
    fail_file(shard.path, "an HDF5 file", "that " + problem, "copy or write the file again");
  }
  return {shard.path, bytes};
}

Dataset open_integers(const Shard& shard, const Source& source, const char* name) {
  std::optional<Dataset> dataset = find_dataset(source, name);
  if (!dataset) fail_file(shard.path, fmt::format("a dataset named {}", name), "none", kHdf5Remedy);
  if (!dataset->type.is_integer) {
    fail_file(shard.path, fmt::format("integers in the dataset {}", name),
              "another type of element", kHdf5Remedy);
  }
  return std::move(*dataset);
}

std::int64_t signed_count(const Dataset& dataset) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;  // whose bytes are no overflow
  return static_cast<std::int64_t>(std::min(dataset.count, kMost));
}

/// Byte of the file at which all elements lie in one piece, or -1. Throws if the file is too short.
std::int64_t offset_in_file(const Shard& shard, const Dataset& dataset) {
  const Storage& storage = dataset.storage;
  const bool is_mapped =
      storage.kind == Storage::Kind::contiguous && storage.address != hdf5::kUndefinedAddress;
  if (!is_mapped) return -1;
  const auto size = static_cast<std::uint64_t>(shard.file.size());
  if (storage.address > size || dataset.count > (size - storage.address) / dataset.type.bytes) {
    fail_file(shard.path,
              fmt::format("{} elements of {} bytes from byte {} on in the dataset {}",
                          dataset.count, dataset.type.bytes, storage.address, dataset.name),
              fmt::format("{} bytes", size), "copy or write the file again");
  }
  return static_cast<std::int64_t>(storage.address);
}

/// Sets type and offset if the ids lie in the file in one piece and in this machine's order.
bool map_in_place(Shard& shard, const Dataset& dataset) {
  const ElementType& type = dataset.type;
  if (type.is_big_endian) return false;
  if (type.bytes == 2 && !type.is_signed) {
    shard.type = IdType::u16;
  } else if (type.bytes == 4) {
    shard.type = type.is_signed ? IdType::i32 : IdType::u32;
  } else if (type.bytes == 8 && type.is_signed) {
    shard.type = IdType::i64;
  } else {
    return false;
  }
  shard.offset = offset_in_file(shard, dataset);
  return shard.offset >= 0;
}

/// Takes memory for elements that must be converted, if the file can hold so many.
void allocate(const Shard& shard, const Source& source, const Dataset& dataset, std::int64_t bytes,
              std::vector<std::byte>& memory) {
  constexpr std::int64_t kMostTokens = 1LL << 44;  // beyond the memory of any machine
  const auto fail = [&] {
    fail_file(shard.path, "ids that fit in memory, where they are converted",
              fmt::format("{} tokens", dataset.count),
              "write them as little-endian uint16, uint32, int32 or int64");
  };
  if (shard.count > kMostTokens) fail();
  require_elements(source, dataset);
  try {
    memory.resize(static_cast<std::size_t>(bytes));
  } catch (const std::bad_alloc&) {
    fail();
  }
}

/// One element as a whole number; those above the largest become it.
std::int64_t element_at(const std::byte* bytes, const ElementType& type) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < type.bytes; ++i) {
    const std::size_t at = type.is_big_endian ? i : type.bytes - 1 - i;
    value = value << 8U | std::to_integer<std::uint64_t>(bytes[at]);
  }
  constexpr std::uint64_t kSignBit = std::uint64_t{1} << 63;
  if (!type.is_signed) return static_cast<std::int64_t>(std::min(value, kSignBit - 1));
  const auto unused = static_cast<unsigned>(64 - 8 * type.bytes);
  return static_cast<std::int64_t>(value << unused) >> unused;
}

/// Converts elements of any type to T, the machine's own.
template <class T>
void convert(const std::vector<std::byte>& stored, const ElementType& type, std::byte* out) {
  for (std::size_t i = 0; i < stored.size() / type.bytes; ++i) {
    const auto value = static_cast<T>(element_at(stored.data() + i * type.bytes, type));
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

std::vector<std::byte> stored_elements(const Source& source, const Dataset& dataset) {
  std::vector<std::byte> stored(dataset.count * dataset.type.bytes);
  read_elements(source, dataset, stored);
  return stored;
}

/// Compact, big-endian or unusual integers: converted once, into memory.
void read_to_memory(Shard& shard, const Source& source, const Dataset& dataset) {
  const ElementType& type = dataset.type;
  shard.type = IdType::i64;
  if (!type.is_signed && type.bytes <= 2) {
    shard.type = IdType::u16;
  } else if (type.bytes <= 4) {
    shard.type = type.is_signed ? IdType::i32 : IdType::u32;
  }
  shard.offset = -1;
  allocate(shard, source, dataset, shard.bytes(), shard.memory);
  const bool is_native = !type.is_big_endian && size_of(shard.type) == std::int64_t(type.bytes) &&
                         (type.is_signed || type.bytes < 8);
  if (is_native) return read_elements(source, dataset, shard.memory);
  const std::vector<std::byte> stored = stored_elements(source, dataset);
  switch (shard.type) {
    case IdType::u16: return convert<std::uint16_t>(stored, type, shard.memory.data());
    case IdType::u32: return convert<std::uint32_t>(stored, type, shard.memory.data());
    case IdType::i32: return convert<std::int32_t>(stored, type, shard.memory.data());
    case IdType::i64: return convert<std::int64_t>(stored, type, shard.memory.data());
  }
}

/// One byte a token: integers or, as h5py writes bool, an enumeration.
void read_mask(Shard& shard, const Source& source, const Dataset& dataset) {
  const ElementType& type = dataset.type;
  if ((!type.is_integer && !type.is_enum) || type.bytes != 1) {
    fail_file(shard.path, "a dataset loss_mask of uint8",
              fmt::format("elements of {} bytes of another type", type.bytes), "write it as uint8");
  }
  if (signed_count(dataset) != shard.count) {
    fail_file(shard.path, fmt::format("a dataset loss_mask of {} bytes, one a token", shard.count),
              fmt::format("{}", dataset.count), "write tokens and mask again");
  }
  shard.has_mask = true;
  shard.mask_offset = offset_in_file(shard, dataset);
  if (shard.mask_offset >= 0) return;
  allocate(shard, source, dataset, shard.count, shard.mask_memory);
  read_elements(source, dataset, shard.mask_memory);
}

/// The dataset `vocabulary` as write_record() makes it, if there is one.
void read_record(Shard& shard, const Source& source) {
  const std::optional<Dataset> dataset = find_dataset(source, "vocabulary");
  const bool is_record = dataset && dataset->type.is_integer && dataset->type.is_signed &&
                         dataset->type.bytes == 8 && dataset->count == 3;
  if (!is_record) return;
  require_elements(source, *dataset);
  const std::vector<std::byte> stored = stored_elements(source, *dataset);
  const auto at = [&](std::size_t i) { return element_at(stored.data() + 8 * i, dataset->type); };
  shard.vocabulary = {at(0), static_cast<std::uint64_t>(at(1)), static_cast<std::int32_t>(at(2))};
}

}  // namespace

bool has_hdf5_signature(const Shard& shard) {
  constexpr unsigned char kSignature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};
  const auto bytes = shard.file.bytes();
  return bytes.size() >= 8 && std::memcmp(bytes.data(), kSignature, 8) == 0;
}

void read_hdf5_tokens(Shard& shard, bool loss_mask) {
  const Source source = open_hdf5(shard);
  const Dataset dataset = open_integers(shard, source, "tokens");
  shard.count = signed_count(dataset);
  if (!map_in_place(shard, dataset)) read_to_memory(shard, source, dataset);
  if (loss_mask) {
    if (const auto mask = find_dataset(source, "loss_mask")) read_mask(shard, source, *mask);
  }
  read_record(shard, source);
  shard.format = fmt::format("HDF5 {}", name_of(shard.type));
}

namespace {

/// Elements of 4 bytes in this machine's order; `is_type` tests them.
ShardColumn column_in(const Shard& shard, const Source& source, std::string_view name,
                      std::uint64_t dimensions, const char* type,
                      bool (*is_type)(const ElementType&)) {
  const auto dataset = find_dataset(source, std::string(name), dimensions);
  ShardColumn column;
  if (!dataset) return column;
  if (!is_type(dataset->type) || dataset->type.is_big_endian || dataset->type.bytes != 4) {
    fail_file(shard.path, fmt::format("a dataset {} of little-endian {}", name, type),
              fmt::format("elements of {} bytes of another type", dataset->type.bytes),
              fmt::format("write it as {}", type));
  }
  require_elements(source, *dataset);
  column.columns = static_cast<std::int64_t>(dataset->columns);
  const std::int64_t offset = offset_in_file(shard, *dataset);
  const std::size_t bytes = dataset->count * dataset->type.bytes;
  if (offset >= 0) {
    column.bytes = shard.file.bytes().subspan(static_cast<std::size_t>(offset), bytes);
    return column;
  }
  column.memory = stored_elements(source, *dataset);
  column.bytes = column.memory;
  return column;
}

}  // namespace

void read_hdf5_columns(Shard& shard, const ColumnNeeds& needs) {
  const Source source = open_hdf5(shard);
  const auto is_float = [](const ElementType& type) { return type.is_float32; };
  const auto is_id = [](const ElementType& type) { return type.is_integer && type.is_signed; };
  for (const TokenColumn column : kTokenColumns) {
    if (!reads(needs, column)) continue;
    shard.values[static_cast<std::size_t>(column)] =
        column_in(shard, source, dataset_of(column), 1, "float32", is_float);
  }
  if (shard.columns.teachers == 0 || !needs.all) return;
  shard.teacher_ids = column_in(shard, source, kTeacherIds, 2, "int32", is_id);
  shard.teacher_values = column_in(shard, source, kTeacherLogProbabilities, 2, "float32", is_float);
}

std::vector<std::int64_t> read_hdf5_documents(const Shard& shard) {
  const Source source = open_hdf5(shard);
  if (!find_dataset(source, "documents")) return {};
  const Dataset dataset = open_integers(shard, source, "documents");
  std::vector<std::int64_t> starts;  // left empty if more documents than tokens are damage
  if (signed_count(dataset) <= shard.count) {
    require_elements(source, dataset);
    const std::vector<std::byte> stored = stored_elements(source, dataset);
    starts.resize(dataset.count);
    convert<std::int64_t>(stored, dataset.type, reinterpret_cast<std::byte*>(starts.data()));
  }
  const bool ascending = std::ranges::adjacent_find(starts, std::greater_equal()) == starts.end();
  if (starts.empty() || starts.front() != 0 || starts.back() >= shard.count || !ascending) {
    fail_file(shard.path,
              fmt::format("starts of documents that ascend from 0 and are below {}", shard.count),
              fmt::format("{} other numbers in the dataset documents", dataset.count), kHdf5Remedy);
  }
  return starts;
}

}  // namespace hyperslab::io
