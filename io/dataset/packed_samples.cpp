// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "dataset/best_fit.hpp"
#include "dataset/counted_targets.hpp"
#include "dataset/read_rows.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/packing.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {
namespace {

constexpr int kLengthBits = 20;
static_assert(Dim{1} << kLengthBits == kMostPackedTokens);
constexpr std::int64_t kMostTokens = std::int64_t{1} << (63 - kLengthBits);
constexpr std::size_t kMostPieces = std::numeric_limits<std::uint32_t>::max() - 1;

/// A piece of an index: its first token, its length less one, and whether it ends its document.
std::uint64_t packed(std::int64_t begin, std::int64_t length, bool ends_document) {
  return static_cast<std::uint64_t>(begin) << (kLengthBits + 1) |
         static_cast<std::uint64_t>(length - 1) << 1 | (ends_document ? 1 : 0);
}
std::int64_t length_of(std::uint64_t piece) {
  return static_cast<std::int64_t>(piece >> 1 & (kMostPackedTokens - 1)) + 1;
}
PackedSamples::Piece piece_of(std::uint64_t piece) {
  const auto begin = static_cast<std::int64_t>(piece >> (kLengthBits + 1));
  return {begin, begin + length_of(piece), (piece & 1) != 0};
}

[[noreturn]] void fail_size(const TokenSource& source, const std::string& expected) {
  throw Error(ExitCode::data, fmt::format("{}: data.packing: expected {}; give fewer files, or "
                                          "leave data.packing out",
                                          source.description(), expected));
}

/// All pieces of up to T tokens, in the order of the source.
std::vector<std::uint64_t> pieces_in(const TokenSource& source,
                                     std::span<const std::int64_t> documents, Dim T) {
  std::vector<std::uint64_t> pieces;
  pieces.reserve(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t end = i + 1 < documents.size() ? documents[i + 1] : source.size();
    for (std::int64_t begin = documents[i]; begin < end; begin += T) {
      pieces.push_back(packed(begin, std::min(T, end - begin), begin + T >= end));
    }
    if (pieces.size() > kMostPieces) fail_size(source, "at most 4294967294 pieces of documents");
  }
  return pieces;
}

std::vector<std::int32_t> lengths_of(std::span<const std::uint64_t> pieces) {
  std::vector<std::int32_t> lengths(pieces.size());
  std::ranges::transform(pieces, lengths.begin(), [](std::uint64_t piece) {
    return static_cast<std::int32_t>(length_of(piece));
  });
  return lengths;
}

/// Documents that samples of consecutive tokens cut.
std::int64_t cut_by_blocks(std::span<const std::int64_t> documents, std::int64_t size, Dim T) {
  std::int64_t cut = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t end = i + 1 < documents.size() ? documents[i + 1] : size;
    if (documents[i] / T != (end - 1) / T) ++cut;
  }
  return cut;
}

}  // namespace

PackingFigures& PackingFigures::operator+=(const PackingFigures& other) {
  documents += other.documents;
  pieces += other.pieces;
  samples += other.samples;
  padding += other.padding;
  cut += other.cut;
  cut_contiguous += other.cut_contiguous;
  return *this;
}

/// One sample to be filled.
struct PackedSamples::Row {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> targets;
  std::span<std::int32_t> first_keys;  ///< empty if not asked for
  std::span<std::int32_t> pairs;       ///< likewise
  TargetValues values;
};

PackedSamples::PackedSamples(const TokenSource& source, std::span<const std::int64_t> documents,
                             Packing packing, Dim T, std::uint64_t seed, const TargetRules& rules,
                             PackedAs packed_as)
    : source_(source), T_(T), seed_(seed), rules_(rules) {
  require(T > 0 && T <= kMostPackedTokens && packing != Packing::contiguous,
          "packed samples of another length or kind");
  require(!documents.empty() && documents.front() == 0 && source.size() > 0,
          "packed samples without documents");
  rules_.end_token = -1;  // documents are known
  if (source.size() > kMostTokens) fail_size(source, "at most 8796093022208 tokens");
  std::vector<std::int64_t> pairs;
  if (packed_as == PackedAs::pairs) documents = pairs = pairs_of(documents);
  pieces_ = pieces_in(source, documents, T);
  if (packing == Packing::best_fit) {
    place_by_segment();
  } else {
    firsts_.resize(pieces_.size() + 1);
    std::iota(firsts_.begin(), firsts_.end(), 0);
  }
  figures_.documents = std::ssize(documents);
  figures_.pieces = std::ssize(pieces_);
  figures_.samples = size();
  figures_.padding = size() * T - source.size();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t end = i + 1 < documents.size() ? documents[i + 1] : source.size();
    if (end - documents[i] > T) ++figures_.cut;
  }
  figures_.cut_contiguous = cut_by_blocks(documents, source.size(), T);
}

std::vector<std::int64_t> PackedSamples::pairs_of(std::span<const std::int64_t> documents) {
  if (documents.size() % 2 != 0) {
    throw Error(
        ExitCode::data,
        fmt::format("{}: train.loss: preference expects documents in pairs, a chosen and a "
                    "rejected answer each, found an odd number, {}; write the missing one, or "
                    "set data.end_token to the id that ends documents",
                    source_.description(), documents.size()));
  }
  for (const std::int64_t begin : source_.segments()) {
    const auto before = std::ranges::lower_bound(documents, begin) - documents.begin();
    if (before % 2 == 0) continue;
    throw Error(
        ExitCode::data,
        fmt::format("{}: train.loss: preference expects an even number of documents in every "
                    "file, found {} before token {}, where a file begins; write the missing "
                    "one",
                    source_.description(), before, begin));
  }
  std::vector<std::int64_t> pairs;
  for (std::size_t i = 0; i < documents.size(); i += 2) {
    const std::int64_t end = i + 2 < documents.size() ? documents[i + 2] : source_.size();
    if (end - documents[i] > T_) {
      throw Error(
          ExitCode::data,
          fmt::format("{}: train.loss: preference expects pairs of at most model.context {} "
                      "tokens, found {} in pair {}, which begins at token {}; leave it out, "
                      "or make model.context larger",
                      source_.description(), T_, end - documents[i], i / 2, documents[i]));
    }
    pairs.push_back(documents[i]);
    rejected_.push_back(documents[i + 1]);
  }
  return pairs;
}

void PackedSamples::place_by_segment() {
  const std::vector<std::int64_t> segments = source_.segments();
  const std::vector<std::uint64_t> all = std::exchange(pieces_, {});
  pieces_.reserve(all.size());
  firsts_ = {0};
  auto begin = all.begin();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::int64_t limit = i + 1 < segments.size() ? segments[i + 1] : source_.size();
    const auto end = std::partition_point(
        begin, all.end(), [&](std::uint64_t piece) { return piece_of(piece).begin < limit; });
    if (begin == end) continue;
    const std::span of_segment(begin, end);
    const Bins bins = best_fit(lengths_of(of_segment), T_);
    const std::int64_t before = std::ssize(pieces_);
    for (const std::uint32_t item : bins.items) pieces_.push_back(of_segment[item]);
    for (std::size_t bin = 1; bin < bins.firsts.size(); ++bin) {
      firsts_.push_back(before + bins.firsts[bin]);
    }
    begin = end;
  }
}

std::int64_t PackedSamples::size() const { return std::ssize(firsts_) - 1; }

std::span<const std::uint64_t> PackedSamples::place_of(std::int64_t index) const {
  require(index >= 0, "negative sample index");
  const auto n = static_cast<std::uint64_t>(size());
  const auto g = static_cast<std::uint64_t>(index);
  const std::uint64_t place = permuted_index(g % n, n, seed_, g / n);
  const auto first = static_cast<std::size_t>(firsts_[place]);
  return std::span(pieces_).subspan(first, static_cast<std::size_t>(firsts_[place + 1]) - first);
}

std::vector<PackedSamples::Piece> PackedSamples::pieces(std::int64_t index) const {
  std::vector<Piece> found;
  for (const std::uint64_t piece : place_of(index)) found.push_back(piece_of(piece));
  return found;
}

std::int64_t PackedSamples::counted(std::int64_t index) const {
  const bool reads = rules_.ignore_token >= 0 || source_.has_mask();
  std::int64_t counted = 0;
  for (const std::uint64_t each : place_of(index)) {
    const Piece piece = piece_of(each);
    const std::int64_t targets = piece.end - piece.begin - (piece.ends_document ? 1 : 0);
    counted += reads ? count_targets(source_, rules_, piece.begin + 1, targets) : targets;
  }
  return counted;
}

double PackedSamples::weights(std::int64_t index) const {
  const auto pieces = place_of(index);
  if (!rejected_.empty()) return static_cast<double>(pieces.size());
  if (!has_weights()) return static_cast<double>(counted(index));
  double sum = 0;
  for (const std::uint64_t each : pieces) {
    const Piece piece = piece_of(each);
    const std::int64_t targets = piece.end - piece.begin - (piece.ends_document ? 1 : 0);
    sum += sum_weights(source_, rules_, piece.begin + 1, targets);
  }
  return sum;
}

void PackedSamples::read_piece(const Row& row, std::size_t at, Piece piece) const {
  const auto length = static_cast<std::size_t>(piece.end - piece.begin);
  const auto tokens = row.tokens.subspan(at, length);
  const auto targets = row.targets.subspan(at, length);
  source_.read(piece.begin, tokens);
  std::ranges::copy(tokens.subspan(1), targets.begin());
  if (piece.ends_document) {
    targets.back() = ops::kIgnoredTarget;
  } else {
    source_.read(piece.end, targets.last(1));
  }
  const std::size_t own = length - (piece.ends_document ? 1 : 0);
  ignore_targets(source_, rules_, piece.begin + 1, tokens.front(), targets.first(own));
  row.values.read(source_, piece.begin + 1, at, own);
  if (row.first_keys.empty()) return;
  std::ranges::fill(row.first_keys.subspan(at, length), static_cast<std::int32_t>(at));
}

void PackedSamples::read_row(std::int64_t index, const Row& row) const {
  std::size_t at = 0;
  std::int32_t pair = 0;
  row.values.clear();
  for (const std::uint64_t each : place_of(index)) {
    const Piece piece = piece_of(each);
    const auto length = static_cast<std::size_t>(piece.end - piece.begin);
    if (rejected_.empty()) {
      read_piece(row, at, piece);
    } else {
      const std::int64_t middle = *std::ranges::upper_bound(rejected_, piece.begin);
      const auto chosen = static_cast<std::size_t>(middle - piece.begin);
      read_piece(row, at, {piece.begin, middle, true});
      read_piece(row, at + chosen, {middle, piece.end, true});
      if (!row.pairs.empty()) {
        std::ranges::fill(row.pairs.subspan(at, chosen), 2 * pair);
        std::ranges::fill(row.pairs.subspan(at + chosen, length - chosen), 2 * pair + 1);
      }
      ++pair;
    }
    at += length;
  }
  std::ranges::fill(row.tokens.subspan(at), 0);
  std::ranges::fill(row.targets.subspan(at), ops::kIgnoredTarget);
  if (!row.pairs.empty()) std::ranges::fill(row.pairs.subspan(at), kNoPair);
  if (row.first_keys.empty()) return;
  std::ranges::fill(row.first_keys.subspan(at), static_cast<std::int32_t>(at));
}

void PackedSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  const auto [B, T] = out.tokens.dims<2>("tokens");
  require(T == T_, "tokens of another length than the samples");
  for (Dim b = 0; b < B; ++b) {
    const auto row_of = [b](const View& view) {
      return view ? view.slice(b, 1).span<std::int32_t>() : std::span<std::int32_t>();
    };
    const Row row = {row_of(out.tokens), row_of(out.targets), row_of(out.first_keys),
                     row_of(out.pairs), TargetValues(out, b)};
    if (first + b < end) {
      read_row(first + b, row);
      continue;
    }
    std::ranges::fill(row.tokens, 0);
    std::ranges::fill(row.targets, ops::kIgnoredTarget);
    std::ranges::fill(row.first_keys, 0);
    std::ranges::fill(row.pairs, kNoPair);
    row.values.clear();
  }
}

}  // namespace hyperslab::io
