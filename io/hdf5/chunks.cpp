// SPDX-License-Identifier: Apache-2.0
// Addresses of a dataset's chunks, and the elements of a chunk.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>

#include "hdf5/dataset.hpp"

namespace hyperslab::io::hdf5 {
namespace {

constexpr std::uint64_t kChecksum = 4;

/// Collects the chunks that an index lists.
class ChunkReader {
 public:
  ChunkReader(const Source& source, const Dataset& dataset)
      : source_(source),
        dataset_(dataset),
        what_("the chunks of the dataset " + dataset.name),
        chunk_bytes_(dataset.storage.chunk * dataset.type.bytes),
        needed_(needed_chunks(dataset)) {}

  std::vector<Chunk> read() {
    constexpr int kMostLevel = 31;
    const Storage& storage = dataset_.storage;
    switch (storage.index) {
      case ChunkIndex::tree: add_tree(storage.address, kMostLevel); break;
      case ChunkIndex::single: add_single(); break;
      case ChunkIndex::implicit: add_implicit(); break;
      case ChunkIndex::fixed_array: add_array(); break;
    }
    return std::move(chunks_);
  }

 private:
  [[nodiscard]] Cursor cursor_at(std::uint64_t address, std::uint64_t bytes) const {
    return {source_, source_.at(address, bytes, what_), what_};
  }
  [[nodiscard]] bool is_filtered() const { return !dataset_.storage.filters.empty(); }

  /// Chunks ascend, so that no node can be met twice and no two chunks have the same elements.
  void add(Chunk chunk, const Cursor& cursor) {
    if (!chunks_.empty() && chunk.index <= chunks_.back().index) {
      cursor.fail("chunks that do not ascend");
    }
    if (chunk.index >= needed_) return;  // the dataset was made shorter
    (void)source_.at(chunk.address, chunk.bytes, what_);
    chunks_.push_back(chunk);
  }

  void add_tree(std::uint64_t node, int most_level) {
    constexpr std::uint64_t kNodeBytes = 24;
    constexpr std::uint64_t kKeyBytes = 24;  // sizes, and the offsets of element and byte
    Cursor head = cursor_at(node, kNodeBytes);
    head.expect("TREE");
    if (head.number(1) != 1) head.fail("another kind of node");
    const auto level = static_cast<int>(head.number(1));
    const std::uint64_t entries = head.number(2);
    if (level > most_level || entries == 0) {
      head.fail(fmt::format("a node of level {} with {} entries", level, entries));
    }
    Cursor body = cursor_at(node + kNodeBytes, (kKeyBytes + 8) * entries + kKeyBytes);
    for (std::uint64_t i = 0; i < entries; ++i) {
      Chunk chunk;
      chunk.bytes = body.number(4);
      chunk.mask = static_cast<std::uint32_t>(body.number(4));
      const std::uint64_t element = body.number(8);
      body.skip(8);
      chunk.address = body.number(8);
      if (level > 0) {
        const std::size_t before = visited_;
        add_tree(chunk.address, level - 1);
        if (visited_ == before) body.fail("nodes without chunks");
        continue;
      }
      ++visited_;
      if (element % dataset_.storage.chunk != 0) body.fail("chunks between others");
      chunk.index = element / dataset_.storage.chunk;
      if (visited_ > source_.size() / (kKeyBytes + 8)) body.fail("more chunks than it can hold");
      add(chunk, body);
    }
  }

  void add_single() {
    const Storage& storage = dataset_.storage;
    const Cursor nothing = cursor_at(0, 0);
    if (is_filtered() != (storage.single_bytes > 0)) nothing.fail("a single one of unknown size");
    if (needed_ != 1) nothing.fail("a single one for more elements");
    const std::uint64_t bytes = is_filtered() ? storage.single_bytes : chunk_bytes_;
    add({0, storage.address, bytes, storage.single_mask}, nothing);
  }

  void add_implicit() {
    const Cursor nothing = cursor_at(0, 0);
    if (is_filtered()) nothing.fail("filters, but no index");
    if (needed_ > source_.size() / chunk_bytes_) nothing.fail("no end in its bytes");
    for (std::uint64_t i = 0; i < needed_; ++i) {
      add({i, dataset_.storage.address + i * chunk_bytes_, chunk_bytes_, 0}, nothing);
    }
  }

  /// A header, a block with the addresses of all chunks, in pages if there are many.
  void add_array() {
    constexpr std::uint64_t kHeaderBytes = 28;
    Cursor header(source_, checked(source_, dataset_.storage.address, kHeaderBytes, what_), what_);
    header.expect("FAHD");
    require_version(header);
    const std::uint64_t entry_bytes = header.number(1);
    const std::uint64_t page_bits = header.number(1);
    const std::uint64_t entries = header.number(8);
    const std::uint64_t block = header.number(8);
    if (entry_bytes < (is_filtered() ? 13U : 8U) || entry_bytes > 20 || page_bits > 32) {
      header.fail(fmt::format("entries of {} bytes, 2^{} a page", entry_bytes, page_bits));
    }
    if (block == kUndefinedAddress) return;
    if (entries < needed_ || entries > source_.size() / entry_bytes) {
      header.fail(fmt::format("{} entries for {} chunks", entries, needed_));
    }
    const std::uint64_t page = std::uint64_t{1} << page_bits;
    const std::uint64_t pages = entries > page ? (entries + page - 1) / page : 0;
    constexpr std::uint64_t kPrefixBytes = 14;
    const std::uint64_t prefix = kPrefixBytes + (pages + 7) / 8;
    const std::uint64_t inside = pages == 0 ? entries * entry_bytes : 0;
    Cursor body(source_, checked(source_, block, prefix + inside + kChecksum, what_), what_);
    body.expect("FADB");
    require_version(body);
    body.skip(8);
    const auto written = body.take((pages + 7) / 8);
    if (pages == 0) return add_entries(body, 0, entries, entry_bytes);
    std::uint64_t address = block + prefix + kChecksum;
    for (std::uint64_t i = 0; i < pages; ++i) {
      const std::uint64_t count = std::min(page, entries - i * page);
      const std::uint64_t bytes = count * entry_bytes + kChecksum;
      // The first bit of a byte is the highest.
      if ((std::to_integer<unsigned>(written[i / 8]) >> (7 - i % 8) & 1U) != 0) {
        Cursor entries_of_page(source_, checked(source_, address, bytes, what_), what_);
        add_entries(entries_of_page, i * page, count, entry_bytes);
      }
      address += bytes;
    }
  }

  void require_version(Cursor& cursor) const {
    const std::uint64_t version = cursor.number(1);
    const bool is_for_filtered = cursor.number(1) == 1;
    if (version != 0 || is_for_filtered != is_filtered()) {
      cursor.fail(fmt::format("an index of version {} for {} chunks", version,
                              is_for_filtered ? "filtered" : "plain"));
    }
  }

  void add_entries(Cursor& cursor, std::uint64_t first, std::uint64_t count,
                   std::uint64_t entry_bytes) {
    for (std::uint64_t i = 0; i < count; ++i) {
      Chunk chunk{first + i, cursor.number(8), chunk_bytes_, 0};
      if (is_filtered()) {
        chunk.bytes = cursor.number(entry_bytes - 12);
        chunk.mask = static_cast<std::uint32_t>(cursor.number(4));
      } else {
        cursor.skip(entry_bytes - 8);
      }
      if (chunk.address != kUndefinedAddress) add(chunk, cursor);
    }
  }

  const Source& source_;
  const Dataset& dataset_;
  std::string what_;
  std::uint64_t chunk_bytes_;
  std::uint64_t needed_;
  std::size_t visited_ = 0;  ///< chunks of the tree
  std::vector<Chunk> chunks_;
};

/// Undoes deflate; `bytes` is the size of the result.
std::vector<std::byte> inflated(const Source& source, std::span<const std::byte> stored,
                                std::uint64_t bytes, const std::string& what) {
  std::vector<std::byte> out(bytes);
  uLongf length = out.size();
  uLong used = stored.size();
  const int status = uncompress2(reinterpret_cast<Bytef*>(out.data()), &length,
                                 reinterpret_cast<const Bytef*>(stored.data()), &used);
  if (status != Z_OK || length != bytes) {
    source.fail_damaged(fmt::format("{} that does not unpack to {} bytes", what, bytes));
  }
  return out;
}

/// Undoes shuffle: the first bytes of all elements were stored first, then the second ones, ...
std::vector<std::byte> unshuffled(std::span<const std::byte> stored, std::size_t element_bytes) {
  std::vector<std::byte> out(stored.begin(), stored.end());
  const std::size_t count = stored.size() / element_bytes;
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    for (std::size_t i = 0; i < count; ++i) {
      out[i * element_bytes + byte] = stored[byte * count + i];
    }
  }
  return out;
}

/// Fletcher's checksum as HDF5 computes it, over big-endian words of 16 bits.
std::uint32_t fletcher32(std::span<const std::byte> bytes) {
  constexpr std::size_t kWords = 360;  // as many sums do not overflow
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  const auto fold = [](std::uint32_t sum) { return (sum & 0xFFFFU) + (sum >> 16U); };
  const auto at = [&](std::size_t i) { return std::to_integer<std::uint32_t>(bytes[i]); };
  const std::size_t words = bytes.size() / 2;
  for (std::size_t begin = 0; begin < words; begin += kWords) {
    for (std::size_t i = begin; i < std::min(words, begin + kWords); ++i) {
      first += at(2 * i) << 8U | at(2 * i + 1);
      second += first;
    }
    first = fold(first), second = fold(second);
  }
  if (bytes.size() % 2 == 1) {
    first += at(bytes.size() - 1) << 8U;
    second += first;
    first = fold(first), second = fold(second);
  }
  first = fold(first), second = fold(second);
  return second << 16U | first;
}

/// Takes the checksum off; files of HDF5 1.6.2 and older have its bytes in another order.
void take_fletcher32(const Source& source, std::vector<std::byte>& bytes, const std::string& what) {
  if (bytes.size() < kChecksum) source.fail_damaged(what + " without a checksum (fletcher32)");
  const auto content = std::span(bytes).first(bytes.size() - kChecksum);
  Cursor cursor(source, std::span(bytes).last(kChecksum), what);
  const auto expected = static_cast<std::uint32_t>(cursor.number(kChecksum));
  const std::uint32_t found = fletcher32(content);
  const std::uint32_t swapped = (found & 0x00FF00FFU) << 8U | (found >> 8U & 0x00FF00FFU);
  if (expected != found && expected != swapped) {
    cursor.fail("another checksum (fletcher32) than it says");
  }
  bytes.resize(content.size());
}

}  // namespace

std::vector<Chunk> chunks_of(const Source& source, const Dataset& dataset) {
  return ChunkReader(source, dataset).read();
}

std::vector<std::byte> unfiltered(const Source& source, const Dataset& dataset,
                                  const Chunk& chunk) {
  const Storage& storage = dataset.storage;
  const std::string what = fmt::format("chunk {} of the dataset {}", chunk.index, dataset.name);
  const auto stored = source.at(chunk.address, chunk.bytes, what);
  std::vector<std::byte> bytes(stored.begin(), stored.end());
  const auto is_used = [&](std::size_t i) { return (chunk.mask >> i & 1U) == 0; };
  const auto require_bytes = [&](std::optional<std::uint64_t> expected) {
    if (!expected || bytes.size() == *expected) return;
    source.fail_damaged(
        fmt::format("{} with {} bytes instead of {}", what, bytes.size(), *expected));
  };
  // Bytes that each filter was given when it encoded the chunk: the elements, with the checksums of
  // the filters before it. Nothing if they are not known, as after deflate.
  std::vector<std::optional<std::uint64_t>> sizes;
  std::optional<std::uint64_t> size = storage.chunk * dataset.type.bytes;
  for (std::size_t i = 0; i < storage.filters.size(); ++i) {
    sizes.push_back(size);
    if (!is_used(i)) continue;
    if (storage.filters[i] == FilterKind::deflate) size.reset();
    if (storage.filters[i] == FilterKind::fletcher32 && size) *size += kChecksum;
  }
  for (std::size_t i = storage.filters.size(); i-- > 0;) {
    if (!is_used(i)) continue;
    if (storage.filters[i] == FilterKind::deflate) {
      bytes = inflated(source, bytes, sizes[i].value(), what);
    } else if (storage.filters[i] == FilterKind::shuffle) {
      require_bytes(sizes[i]);
      bytes = unshuffled(bytes, dataset.type.bytes);
    } else {
      take_fletcher32(source, bytes, what);
      require_bytes(sizes[i]);
    }
  }
  require_bytes(storage.chunk * dataset.type.bytes);
  return bytes;
}

}  // namespace hyperslab::io::hdf5
