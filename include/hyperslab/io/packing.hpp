// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// Tokens of a piece, of which an index keeps 20 bits.
inline constexpr Dim kMostPackedTokens = Dim{1} << 20;

/// Numbers of documents and samples after packing a source.
struct PackingFigures {
  std::int64_t documents = 0;
  std::int64_t pieces = 0;
  std::int64_t samples = 0;
  std::int64_t padding = 0;         ///< tokens of all samples
  std::int64_t cut = 0;             ///< documents in more than one sample
  std::int64_t cut_contiguous = 0;  ///< those that samples of consecutive tokens would cut

  PackingFigures& operator+=(const PackingFigures& other);
};

/// Samples of T tokens that hold whole documents, or pieces of T tokens of longer ones and the
/// remainders of these. With Packing::document a sample holds one piece; with best_fit pieces are
/// placed by falling length (equal ones in their order), each into the sample with the least room
/// that it fits in (of equal ones the one filled last), as in Ding et al., "Fewer Truncations
/// Improve Language Modeling", arXiv 2404.10830. Each segment of the source is packed alone. The
/// rest of a sample is padding: ids of 0 that are one more document.
///
/// Targets are the next tokens of the same document, also behind the end of a piece; the last token
/// of a document and padding have none. Sample g is place perm(g mod n, epoch) of the n, as in
/// TokenSamples.
///
/// With PackedAs::pairs two documents in a row, a chosen and a rejected answer, are one pair, which
/// takes the place of a document above and is never cut. Attention sees its documents apart, and
/// weights() counts pairs.
///
/// The index has 8 bytes a piece and 8 a sample in memory, and takes up to 50 bytes a piece while
/// it is made, in O(pieces log T).
class PackedSamples final : public Samples {
 public:
  /// `documents`: the first token of each, as of TokenSource::documents(). Of `rules` ignore_token
  /// counts; end tokens in a document are tokens like others. `source` must stay. Throws
  /// Error(data) if the text is too long for the index (2^43 tokens, 2^32 - 2 pieces), and with
  /// pairs if a document has no partner or a pair more than T tokens.
  enum class PackedAs : std::uint8_t { documents, pairs };
  PackedSamples(const TokenSource& source, std::span<const std::int64_t> documents, Packing packing,
                Dim T, std::uint64_t seed, const TargetRules& rules = {},
                PackedAs packed_as = PackedAs::documents);
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] Dim targets() const override { return T_; }
  [[nodiscard]] bool may_ignore() const override { return true; }
  [[nodiscard]] std::int64_t counted(std::int64_t index) const override;
  [[nodiscard]] bool has_weights() const override {
    return source_.columns().weight || !rejected_.empty();
  }
  [[nodiscard]] double weights(std::int64_t index) const override;
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override;

  /// Tokens [begin, end) of the source.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool ends_document = false;
    friend bool operator==(const Piece&, const Piece&) = default;
  };
  /// The pieces of sample `index`, any index >= 0, in their order.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t index) const;
  [[nodiscard]] const PackingFigures& figures() const { return figures_; }

 private:
  struct Row;
  /// Keeps the rejected answers' first tokens; returns those of the chosen ones.
  [[nodiscard]] std::vector<std::int64_t> pairs_of(std::span<const std::int64_t> documents);
  /// Fills [at, ...) of a row with tokens [begin, end), which end their document if `ends`.
  void read_piece(const Row& row, std::size_t at, Piece piece) const;
  /// Places the pieces, which come in the order of the source, by best_fit of each segment.
  void place_by_segment();
  [[nodiscard]] std::span<const std::uint64_t> place_of(std::int64_t index) const;
  void read_row(std::int64_t index, const Row& row) const;

  const TokenSource& source_;
  Dim T_;
  std::uint64_t seed_;
  TargetRules rules_;
  std::vector<std::uint64_t> pieces_;   ///< pieces of the samples, one after the other
  std::vector<std::int64_t> firsts_;    ///< first piece of each sample, and the end of the last
  std::vector<std::int64_t> rejected_;  ///< with pairs: first tokens of the rejected answers
  PackingFigures figures_;
};

}  // namespace hyperslab::io
