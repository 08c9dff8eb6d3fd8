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

constexpr std::uint64_t kMostOfChunk = std::uint64_t{1} << 30;  // bytes
constexpr std::uint64_t kMostOfDeflate = 1032;                  // by which it can shorten

/// Reads the messages of one dataset.
class DatasetReader {
 public:
  DatasetReader(const Source& source, std::string name, std::uint64_t address)
      : source_(source),
        what_("the dataset " + name),
        messages_(messages_at(source, address, what_)) {
    dataset_.name = std::move(name);
  }

  Dataset read() {
    read_dataspace();
    read_type();
    require_no_external_files();
    read_filters();
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

  void read_dataspace() {
    Cursor cursor = get(MessageType::dataspace, "the shape");
    const std::uint64_t version = cursor.number(1);
    if (version != 1 && version != 2) cursor.fail(fmt::format("version {}, not 1 or 2", version));
    const std::uint64_t rank = cursor.number(1);
    cursor.skip(1);
    const bool is_null = version == 2 && cursor.number(1) == 2;
    if (version == 1) cursor.skip(5);
    if (rank != 1 || is_null) {
      source_.fail_unread(fmt::format("a 1-D dataset {}", dataset_.name),
                          fmt::format("{} dimensions", rank));
    }
    dataset_.count = cursor.number(8);
  }

  void read_type() {
    Cursor cursor = get(MessageType::datatype, "the type");
    dataset_.type = type_of(cursor, false);
  }

  static ElementType type_of(Cursor& cursor, bool is_base) {
    constexpr std::uint64_t kInteger = 0;
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
    if (kind != kInteger) return type;
    const std::uint64_t first_bit = cursor.number(2);
    const std::uint64_t bits = cursor.number(2);
    const bool is_whole = first_bit == 0 && bits == 8 * type.bytes;
    type.is_integer =
        is_whole && (type.bytes == 1 || type.bytes == 2 || type.bytes == 4 || type.bytes == 8);
    type.is_big_endian = (flags & 1U) != 0;
    type.is_signed = (flags & 8U) != 0;
    return type;
  }

  void require_no_external_files() const {
    if (!find(MessageType::external_files, "the files")) return;
    refuse("with its elements in this file", "external raw storage, in other files");
  }

  void read_filters() {
    auto cursor = find(MessageType::filters, "the filters");
    if (!cursor) return;
    constexpr std::uint64_t kMostFilters = 8;
    const std::uint64_t version = cursor->number(1);
    if (version != 1 && version != 2) cursor->fail(fmt::format("version {}, not 1 or 2", version));
    const std::uint64_t count = cursor->number(1);
    if (count > kMostFilters) cursor->fail(fmt::format("{} filters", count));
    if (version == 1) cursor->skip(6);
    for (std::uint64_t i = 0; i < count; ++i) read_filter(*cursor, version);
  }

  void read_filter(Cursor& cursor, std::uint64_t version) {
    const std::uint64_t kind = cursor.number(2);
    const bool has_name = version == 1 || kind >= 256;
    const std::uint64_t length = has_name ? cursor.number(2) : 0;
    cursor.skip(2);
    const std::uint64_t values = cursor.number(2);
    const auto text = cursor.take(version == 1 ? (length + 7) / 8 * 8 : length);
    cursor.skip(4 * (version == 1 ? values + values % 2 : values));
    const auto end = std::ranges::find(text, std::byte{0});
    const std::string name(reinterpret_cast<const char*>(text.data()),
                           static_cast<std::size_t>(end - text.begin()));
    auto& filters = dataset_.storage.filters;
    const bool is_known = kind >= 1 && kind <= 3;
    const bool is_second_deflate =
        kind == 1 && std::ranges::find(filters, FilterKind::deflate) != filters.end();
    if (!is_known || is_second_deflate) {
      refuse("that is stored as it is, or with shuffle, fletcher32 and one deflate (gzip)",
             fmt::format("filter {} ({})", kind, name.empty() ? name_of(kind) : printable(name)));
    }
    filters.push_back(static_cast<FilterKind>(kind));
  }

  /// Name of a standard filter; newer files leave it out.
  static std::string name_of(std::uint64_t kind) {
    constexpr std::array kNames = {"none", "deflate", "shuffle",    "fletcher32",
                                   "szip", "nbit",    "scaleoffset"};
    return kind < kNames.size() ? kNames[kind] : "unknown";
  }

  void read_layout() {
    Cursor cursor = get(MessageType::layout, "the layout");
    const std::uint64_t version = cursor.number(1);
    if (version > 4) {
      fail_file(source_.path(),
                fmt::format("a dataset {} as HDF5 1.6.3 to 1.14 write it", dataset_.name),
                fmt::format("a layout of version {}, which HDF5 2.0 and newer (h5py 3.16) write "
                            "for chunks with libver=\"latest\"",
                            version),
                "write it without libver, or change it with HDF5 2.0's "
                "h5repack --low=0 --high=2 FILE NEW.h5");
    }
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
      storage.kind = Storage::Kind::chunked;
      version == 3 ? read_chunks(cursor) : read_indexed_chunks(cursor);
    } else {
      refuse("with its elements in this file",
             kind == 3 ? "a virtual dataset, made of others" : fmt::format("layout {}", kind));
    }
    if (kind != 2 && !storage.filters.empty()) cursor.fail("filters, but no chunks");
  }

  void read_chunks(Cursor& cursor) {
    require_one_dimension(cursor);
    dataset_.storage.address = cursor.number(8);
    const std::uint64_t elements = cursor.number(4);
    set_chunk(cursor, elements, cursor.number(4));
  }

  void read_indexed_chunks(Cursor& cursor) {
    constexpr std::uint64_t kPartialChunksAreUnfiltered = 1;
    constexpr std::uint64_t kSingleIsFiltered = 2;
    Storage& storage = dataset_.storage;
    const std::uint64_t flags = cursor.number(1);
    if ((flags & kPartialChunksAreUnfiltered) != 0) {
      refuse("with filters for all of its chunks", "a last chunk that is left out of them");
    }
    require_one_dimension(cursor);
    const std::uint64_t width = cursor.number(1);
    if (width < 1 || width > 8) cursor.fail(fmt::format("sizes of {} bytes", width));
    const std::uint64_t elements = cursor.number(width);
    set_chunk(cursor, elements, cursor.number(width));
    const std::uint64_t index = cursor.number(1);
    constexpr std::array kNames = {"no index",    "a single chunk",      "no index of chunks",
                                   "fixed array", "an extensible array", "a B-tree of version 2"};
    if (index == 1 && (flags & kSingleIsFiltered) != 0) {
      storage.single_bytes = cursor.number(8);
      storage.single_mask = static_cast<std::uint32_t>(cursor.number(4));
    } else if (index == 3) {
      cursor.skip(1);  // which the array says itself
    } else if (index < 1 || index > 3) {
      refuse("in chunks that a fixed array lists, as for a dataset that cannot grow",
             index < kNames.size() ? kNames[index] : fmt::format("index {} of chunks", index));
    }
    storage.index = static_cast<ChunkIndex>(index);
    storage.address = cursor.number(8);
  }

  static void require_one_dimension(Cursor& cursor) {
    const std::uint64_t dimensions = cursor.number(1);
    if (dimensions != 2) cursor.fail(fmt::format("chunks of {} dimensions", dimensions));
  }

  void set_chunk(Cursor& cursor, std::uint64_t elements, std::uint64_t element_bytes) {
    if (element_bytes != dataset_.type.bytes || elements == 0) {
      cursor.fail(fmt::format("chunks of {} elements of {} bytes", elements, element_bytes));
    }
    dataset_.storage.chunk = elements;
  }

  const Source& source_;
  std::string what_;
  std::vector<Message> messages_;
  Dataset dataset_;
};

/// Upper limit of the elements that the file can hold, compressed or not.
std::uint64_t most_elements(const Source& source, const Dataset& dataset) {
  const auto& filters = dataset.storage.filters;
  const bool deflated = std::ranges::find(filters, FilterKind::deflate) != filters.end();
  return source.size() * (deflated ? kMostOfDeflate : 1) / dataset.type.bytes;
}

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
  } else if (storage.kind == Storage::Kind::contiguous) {
    (void)source.at(storage.address, bytes, "the elements of the dataset " + dataset.name);
  } else if (const auto chunks = chunks_of(source, dataset).size();
             chunks < needed_chunks(dataset)) {
    fail_unwritten(source, dataset, chunks > 0);
  }
}

}  // namespace

std::optional<Dataset> find_dataset(const Source& source, const std::string& name) {
  const std::optional<Link> link = find_link(source, name);
  if (!link) return std::nullopt;
  if (link->kind != Link::Kind::hard) {
    const char* found = "a link of another program's kind";
    if (link->kind == Link::Kind::soft) found = "a soft link";
    if (link->kind == Link::Kind::external) found = "an external link to another file";
    source.fail_unread(fmt::format("the dataset {} itself", name), found);
  }
  return DatasetReader(source, name, link->address).read();
}

std::uint64_t needed_chunks(const Dataset& dataset) {
  const std::uint64_t chunk = dataset.storage.chunk;
  return dataset.count / chunk + (dataset.count % chunk > 0 ? 1 : 0);
}

void require_elements(const Source& source, const Dataset& dataset) {
  if (dataset.count == 0) return;
  const std::uint64_t most = most_elements(source, dataset);
  const Storage& storage = dataset.storage;
  if (storage.address == kUndefinedAddress && storage.kind != Storage::Kind::compact) {
    fail_unwritten(source, dataset, false);
  }
  if (dataset.count > most) {
    source.fail_damaged(
        fmt::format("{} elements in the dataset {} of a file of {} bytes, which holds at most {}",
                    dataset.count, dataset.name, source.size(), most));
  }
  if (storage.chunk > std::min(most, kMostOfChunk / dataset.type.bytes)) {
    source.fail_unread(
        fmt::format("chunks of at most 1 GiB, which the file holds, in the dataset {}",
                    dataset.name),
        fmt::format("{} elements a chunk", storage.chunk));
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
  if (storage.kind == Storage::Kind::contiguous) {
    const auto bytes = source.at(storage.address, out.size(), "the dataset " + dataset.name);
    std::memcpy(out.data(), bytes.data(), out.size());
    return;
  }
  const std::uint64_t chunk_bytes = storage.chunk * dataset.type.bytes;
  for (const Chunk& chunk : chunks_of(source, dataset)) {
    const std::vector<std::byte> elements = unfiltered(source, dataset, chunk);
    const std::uint64_t begin = chunk.index * chunk_bytes;
    const std::uint64_t bytes = std::min(chunk_bytes, out.size() - begin);
    std::memcpy(out.data() + begin, elements.data(), bytes);
  }
}

}  // namespace hyperslab::io::hdf5
