// SPDX-License-Identifier: Apache-2.0
#include "hdf5/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "dataset/mapped_file.hpp"
#include "hdf5/object_header.hpp"
#include "hyperslab/core/printable.hpp"

namespace hyperslab::io::hdf5 {
namespace {

/// Reads the messages of one dataset.
class DatasetReader {
 public:
  DatasetReader(const Source& source, std::string name, std::uint64_t address)
      : source_(source),
        what_("the dataset " + name),
        messages_(messages_at(source, address, what_)) {
    dataset_.name = std::move(name);
  }

  Dataset read(std::uint64_t dimensions) {
    read_dataspace(dimensions);
    read_type();
    require_no_external_files();
    read_layout();
    return std::move(dataset_);
  }

 private:
  [[nodiscard]] std::optional<Cursor> find(MessageType type, const std::string& part) const {
    const auto body = find_message(source_, messages_, type, what_);
    if (!body) return std::nullopt;
    return Cursor(source_, *body, part + " of " + what_);
  }
  [[nodiscard]] Cursor get(MessageType type, const std::string& part) const {
    auto cursor = find(type, part);
    if (!cursor) source_.fail_damaged(what_ + " without " + part + ": it may be a group");
    return *cursor;
  }
  [[noreturn]] void refuse(const std::string& expected, const std::string& found) const {
    source_.fail_unread(fmt::format("a dataset {} {}", dataset_.name, expected), found);
  }

  void read_dataspace(std::uint64_t dimensions) {
    Cursor cursor = get(MessageType::dataspace, "the shape");
    const std::uint64_t version = cursor.number(1);
    if (version != 1 && version != 2) cursor.fail(fmt::format("version {}, not 1 or 2", version));
    const std::uint64_t rank = cursor.number(1);
    cursor.skip(1);
    const bool is_null = version == 2 && cursor.number(1) == 2;
    if (version == 1) cursor.skip(5);
    if (rank != dimensions || is_null) {
      source_.fail_unread(fmt::format("a {}-D dataset {}", dimensions, dataset_.name),
                          fmt::format("{} dimensions", rank));
    }
    dataset_.count = cursor.number(8);
    if (dimensions == 1) return;
    dataset_.columns = cursor.number(8);
    constexpr std::uint64_t kMost = std::uint64_t{1} << 24;  // whose products are no overflow
    const std::uint64_t columns = dataset_.columns;
    if (columns == 0 || columns > kMost || dataset_.count > (std::uint64_t{1} << 38)) {
      source_.fail_unread(fmt::format("a dataset {} of fewer rows and columns", dataset_.name),
                          fmt::format("{} x {}", dataset_.count, columns));
    }
    dataset_.count *= columns;
  }

  void read_type() {
    Cursor cursor = get(MessageType::datatype, "the type");
    dataset_.type = type_of(cursor, false);
  }

  static ElementType type_of(Cursor& cursor, bool is_base) {
    constexpr std::uint64_t kInteger = 0;
    constexpr std::uint64_t kFloat = 1;
    constexpr std::uint64_t kEnum = 8;
    const std::uint64_t kind = cursor.number(1) & 15U;
    const std::uint64_t flags = cursor.number(3);
    ElementType type;
    type.bytes = cursor.number(4);
    if (type.bytes == 0) cursor.fail("elements without bytes");
    if (kind == kEnum && !is_base) {
      const std::size_t bytes = type.bytes;
      type = type_of(cursor, true);
      type.is_enum = type.is_integer && type.bytes == bytes;
      type.is_integer = false;
      type.bytes = bytes;
    }
    if (kind == kFloat) type.is_float32 = is_binary32(cursor, flags, type.bytes);
    if (kind == kFloat || kind == kInteger) type.is_big_endian = (flags & 1U) != 0;
    if (kind != kInteger) return type;
    const std::uint64_t first_bit = cursor.number(2);
    const std::uint64_t bits = cursor.number(2);
    const bool is_whole = first_bit == 0 && bits == 8 * type.bytes;
    type.is_integer =
        is_whole && (type.bytes == 1 || type.bytes == 2 || type.bytes == 4 || type.bytes == 8);
    type.is_signed = (flags & 8U) != 0;
    return type;
  }

  /// Fields of a float: bits in all, then place and number of those of exponent and mantissa.
  static bool is_binary32(Cursor& cursor, std::uint64_t flags, std::size_t bytes) {
    constexpr std::uint64_t kSignPlace = 31;
    const std::array found = {cursor.number(2), cursor.number(2), cursor.number(1),
                              cursor.number(1), cursor.number(1), cursor.number(1),
                              cursor.number(4)};
    constexpr std::array<std::uint64_t, 7> kBinary32 = {0, 32, 23, 8, 0, 23, 127};
    return bytes == 4 && found == kBinary32 && (flags >> 8U & 255U) == kSignPlace;
  }

  void require_no_external_files() const {
    if (!find(MessageType::external_files, "the files")) return;
    refuse("with its elements in this file", "external raw storage, in other files");
  }

  void read_layout() {
    Cursor cursor = get(MessageType::layout, "the layout");
    const std::uint64_t version = cursor.number(1);
    if (version < 3) {
      refuse("as HDF5 1.6.3 and newer write it", fmt::format("a layout of version {}", version));
    }
    const std::uint64_t kind = cursor.number(1);
    Storage& storage = dataset_.storage;
    if (kind == 0) {
      storage.kind = Storage::Kind::compact;
      storage.bytes = cursor.take(cursor.number(2));
    } else if (kind == 1) {
      storage.kind = Storage::Kind::contiguous;
      storage.address = cursor.number(8);
    } else if (kind == 2) {
      fail_file(source_.path(), fmt::format("a dataset {} in one piece", dataset_.name),
                find(MessageType::filters, "the filters") ? "filtered chunks" : "chunks",
                fmt::format("change it with h5repack -l CONTI -f NONE FILE NEW.h5{}",
                            version > 4 ? " of HDF5 2.0 or newer" : ""));
    } else {
      refuse("with its elements in this file",
             kind == 3 ? "a virtual dataset, made of others" : fmt::format("layout {}", kind));
    }
  }

  const Source& source_;
  std::string what_;
  std::vector<Message> messages_;
  Dataset dataset_;
};

[[noreturn]] void fail_unwritten(const Source& source, const Dataset& dataset, bool any) {
  source.fail_damaged(fmt::format("{} elements in the dataset {}: {} never written", dataset.count,
                                  dataset.name, any ? "parts of it were" : "it was"));
}

void require_whole(const Source& source, const Dataset& dataset) {
  const Storage& storage = dataset.storage;
  const std::uint64_t bytes = dataset.count * dataset.type.bytes;
  if (storage.kind == Storage::Kind::compact) {
    if (storage.bytes.size() < bytes) fail_unwritten(source, dataset, true);
  } else if (storage.address == kUndefinedAddress) {
    fail_unwritten(source, dataset, false);
  } else {
    (void)source.at(storage.address, bytes, "the elements of the dataset " + dataset.name);
  }
}

}  // namespace

std::optional<Dataset> find_dataset(const Source& source, const std::string& name,
                                    std::uint64_t dimensions) {
  const std::optional<Link> link = find_link(source, name);
  if (!link) return std::nullopt;
  if (link->kind != Link::Kind::hard) {
    const char* found = "a link of another program's kind";
    if (link->kind == Link::Kind::soft) found = "a soft link";
    if (link->kind == Link::Kind::external) found = "an external link to another file";
    source.fail_unread(fmt::format("the dataset {} itself", name), found);
  }
  return DatasetReader(source, name, link->address).read(dimensions);
}

void require_elements(const Source& source, const Dataset& dataset) {
  if (dataset.count == 0) return;
  const std::uint64_t most = source.size() / dataset.type.bytes;
  const Storage& storage = dataset.storage;
  if (storage.address == kUndefinedAddress && storage.kind != Storage::Kind::compact) {
    fail_unwritten(source, dataset, false);
  }
  if (dataset.count > most) {
    source.fail_damaged(
        fmt::format("{} elements in the dataset {} of a file of {} bytes, which holds at most {}",
                    dataset.count, dataset.name, source.size(), most));
  }
  require_whole(source, dataset);
}

void read_elements(const Source& source, const Dataset& dataset, std::span<std::byte> out) {
  const Storage& storage = dataset.storage;
  if (out.empty()) return;
  if (storage.kind == Storage::Kind::compact) {
    std::memcpy(out.data(), storage.bytes.data(), out.size());
    return;
  }
  const auto bytes = source.at(storage.address, out.size(), "the dataset " + dataset.name);
  std::memcpy(out.data(), bytes.data(), out.size());
}

}  // namespace hyperslab::io::hdf5
