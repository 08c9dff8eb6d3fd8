// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// Number of occurrences of each piece: open addressing over pieces stored one after the other.
class PieceCounts {
 public:
  struct Entry {
    std::uint64_t offset;  ///< in bytes()
    std::uint64_t count;
    std::uint32_t bytes;
    std::uint32_t hash;
  };

  PieceCounts() : slots_(1 << 12, kEmpty) {}
  void add(std::string_view piece, std::uint64_t count);
  void add_all(const PieceCounts& other);
  [[nodiscard]] std::span<const Entry> entries() const { return entries_; }
  [[nodiscard]] std::string_view text(const Entry& entry) const {
    return std::string_view(bytes_).substr(entry.offset, entry.bytes);
  }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;
  void grow();

  std::vector<std::uint32_t> slots_;  ///< indices of entries_
  std::vector<Entry> entries_;
  std::string bytes_;
};

/// Counts GPT-2's pieces of at least two bytes in the files, on all threads, in memory that grows
/// with the distinct pieces alone. `specials`, which have no white space, split the text and are
/// not counted. Of JSON lines the texts are counted. Throws Error(data) for a file that cannot be
/// read, or for a line without a text.
[[nodiscard]] PieceCounts count_pieces(std::span<const std::string> inputs,
                                       const std::vector<std::string>& specials,
                                       const JsonLines& format = {});

}  // namespace hyperslab::io
