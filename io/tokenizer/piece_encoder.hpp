// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/bpe_vocabulary.hpp"
#include "tokenizer/merge_table.hpp"

namespace hyperslab::io {

/// The symbols that merging begins with.
class Alphabet {
 public:
  virtual ~Alphabet() = default;
  /// Appends the ids of the symbols of `piece`.
  virtual void append(std::string_view piece, std::vector<std::int32_t>& ids) const = 0;
};

/// Merges and ids, which all threads read.
struct BpeTables {
  /// `vocabulary` and `symbols` must outlive this. `whole_pieces`: a piece that is a token is not
  /// merged.
  BpeTables(const MergeVocabulary& vocabulary, const Alphabet& symbols, bool whole_pieces);
  const Alphabet& alphabet;
  MergeTable merges;
  /// Ids by the bytes of the token, with `whole_pieces`; else empty.
  std::unordered_map<std::string_view, std::int32_t> whole;
};

/// Ids of single pieces, one thread at a time. Short pieces are kept in a cache of fixed size.
class PieceEncoder {
 public:
  explicit PieceEncoder(const BpeTables& tables);
  /// Appends the ids of `piece`, which is not empty.
  void append(std::string_view piece, std::vector<std::int32_t>& ids);

 private:
  static constexpr std::size_t kKeyWords = 3;
  static constexpr std::size_t kMaxIds = 9;
  static constexpr std::size_t kSlots = std::size_t{1} << 15;
  struct Slot {
    std::array<std::uint64_t, kKeyWords> key{};  ///< bytes, zeros, and the length in the last byte
    std::uint32_t count = 0;                     ///< 0: empty
    std::array<std::int32_t, kMaxIds> ids{};
  };

  void merge(std::string_view piece);
  void merge_short();
  void merge_long();
  void compact(std::span<const std::uint32_t> next);

  const BpeTables& tables_;
  std::vector<Slot> cache_;
  std::vector<std::int32_t> ids_;  ///< ids of the piece that is merged
  std::vector<std::uint32_t> ranks_;
};

}  // namespace hyperslab::io
