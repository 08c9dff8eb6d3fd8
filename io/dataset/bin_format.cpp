// SPDX-License-Identifier: Apache-2.0
// Token files of llm.c (karpathy/llm.c, dev/data/data_common.py: 256 int32 of header: magic,
// version, token count, zeros; then the tokens) and .bin files without a header.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "dataset/llmc_header.hpp"
#include "dataset/shard.hpp"

namespace hyperslab::io {
namespace {

using Header = std::array<std::int32_t, kLlmcHeaderWords>;

Header header_of(const Shard& shard) {
  Header words{};
  const auto bytes = shard.file.bytes();
  std::memcpy(words.data(), bytes.data(), std::min(bytes.size(), sizeof(words)));
  return words;
}

bool is_known_magic(std::int32_t word) { return word == kLlmcMagic16 || word == kLlmcMagic32; }

std::int32_t swapped(std::int32_t word) {
  return static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(word)));
}

bool zeros_from(const Header& words, std::size_t first) {
  return std::all_of(words.begin() + static_cast<std::ptrdiff_t>(first), words.end(),
                     [](std::int32_t word) { return word == 0; });
}

/// Tokens do not look like this: a magic number that is a date, as in all files of llm.c, or a
/// token count that fits the file, and zeros to the end of the header.
bool resembles_header(const Shard& shard, const Header& words) {
  if (shard.file.size() < kLlmcHeaderBytes || words[0] == 0) return false;
  const bool dated = words[0] >= 20230101 && words[0] <= 20991231;
  if (dated && zeros_from(words, 16)) return true;
  const std::int64_t body = shard.file.size() - kLlmcHeaderBytes;
  const bool count_fits = words[2] > 0 && (body == 2LL * words[2] || body == 4LL * words[2]);
  return count_fits && zeros_from(words, 3);
}

/// The high and the low half of a pair of ids that were read as half of their type.
template <class T>
struct Halves {
  std::int64_t pairs = 0;
  std::int64_t large_low = 0;  ///< pairs whose low half is too large for a high one
  bool large_high = false;     ///< some high half is too large for a vocabulary

  /// Counts `count` pairs from pair `first` on.
  void add(const Shard& shard, std::int64_t first, std::int64_t count) {
    constexpr T kMostHigh = 15;  // ids below 2^20 if halves have 16 bits
    const std::byte* ids = shard.file.bytes().data();
    for (std::int64_t i = first; i < first + count; ++i) {
      std::array<T, 2> pair{};
      std::memcpy(pair.data(), ids + 2 * i * static_cast<std::int64_t>(sizeof(T)), sizeof(pair));
      large_low += pair[0] > kMostHigh ? 1 : 0;
      large_high = large_high || pair[1] > kMostHigh;
    }
    pairs += count;
  }
};

/// True if the bytes look like ids of twice as many bytes: every second id is 0 or tiny, and the
/// others are not. Tokens of a text do not; looks at the first and the last pairs.
template <class T>
bool resembles_wider_ids(const Shard& shard) {
  constexpr std::int64_t kFewest = 16;
  constexpr std::int64_t kMost = 4096;
  const std::int64_t pairs = shard.file.size() / (2 * static_cast<std::int64_t>(sizeof(T)));
  if (pairs < kFewest) return false;
  const std::int64_t looked_at = std::min(pairs, kMost);
  Halves<T> halves;
  halves.add(shard, 0, looked_at);
  halves.add(shard, pairs - looked_at, looked_at);
  return !halves.large_high && 4 * halves.large_low >= halves.pairs;
}

[[noreturn]] void fail_wider(const Shard& shard) {
  const bool narrow = shard.type == IdType::u16;
  fail_file(
      shard.path,
      fmt::format("{} ids (data.dtype) in a file without a header", name_of(shard.type)),
      fmt::format("every second one below 16 and the others larger, as {} ids look when they are "
                  "read as {}",
                  narrow ? "uint32" : "int64", name_of(shard.type)),
      narrow
          ? "set data.dtype to uint32; if the ids are uint16, write them with a header (.npy, .h5)"
          : "write the ids with a header (.npy, .h5)");
}

}  // namespace

bool has_llmc_header(const Shard& shard) {
  const Header words = header_of(shard);
  return is_known_magic(words[0]) || is_known_magic(swapped(words[0])) ||
         resembles_header(shard, words);
}

void read_llmc_header(Shard& shard) {
  const Header words = header_of(shard);
  if (is_known_magic(swapped(words[0]))) {
    fail_file(shard.path, "little-endian tokens", "llm.c's magic number in big-endian order",
              "write the file again on a little-endian machine");
  }
  if (!is_known_magic(words[0])) {
    fail_file(
        shard.path,
        fmt::format("llm.c's magic number {} (uint16) or {} (uint32)", kLlmcMagic16, kLlmcMagic32),
        fmt::format("a header with {}", words[0]), "give a token file, or tokenize again");
  }
  const bool wide = words[0] == kLlmcMagic32;
  const std::int32_t version = wide ? kLlmcVersion32 : kLlmcVersion16;
  if (words[1] != version) {
    fail_file(shard.path, fmt::format("version {} with magic number {}", version, words[0]),
              fmt::format("version {}", words[1]), "tokenize again");
  }
  shard.type = wide ? IdType::u32 : IdType::u16;
  shard.format = fmt::format("llm.c {}", name_of(shard.type));
  shard.count = words[2];
  shard.offset = kLlmcHeaderBytes;
  if (words[kRecordWord] == kRecordMark) {
    const auto half = [&](std::size_t word) {
      return std::uint64_t{static_cast<std::uint32_t>(words[kRecordWord + word])};
    };
    shard.vocabulary = {words[kRecordWord + 1], half(2) | half(3) << 32U, words[kRecordWord + 4]};
  }
  const std::int64_t expected = kLlmcHeaderBytes + shard.bytes();
  if (shard.count < 0 || shard.file.size() != expected) {
    fail_file(shard.path,
              fmt::format("{} bytes (header {} + {} tokens of {} bytes)", expected,
                          kLlmcHeaderBytes, shard.count, size_of(shard.type)),
              fmt::format("{} bytes", shard.file.size()), "copy or tokenize the file again");
  }
}

void read_raw(Shard& shard, IdType raw) {
  shard.type = raw;
  shard.format = std::string("raw ") + name_of(raw);
  shard.count = shard.file.size() / size_of(shard.type);
  if (shard.file.size() % size_of(shard.type) != 0) {
    fail_file(shard.path,
              fmt::format("a multiple of {} bytes ({} without a header)", size_of(shard.type),
                          name_of(shard.type)),
              fmt::format("{} bytes", shard.file.size()),
              "correct data.dtype, or copy the file again");
  }
  const bool wider = shard.type == IdType::u16 ? resembles_wider_ids<std::uint16_t>(shard)
                                               : resembles_wider_ids<std::uint32_t>(shard);
  if (wider) fail_wider(shard);
}

}  // namespace hyperslab::io
