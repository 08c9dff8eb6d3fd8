// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/merge_learner.hpp"

#include <array>
#include <limits>
#include <queue>

#include "hyperslab/core/error.hpp"
#include "tokenizer/byte_text.hpp"
#include "tokenizer/merge_table.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int32_t kBoundary = -1;  ///< between two pieces
constexpr std::int32_t kInside = -2;    ///< within a token, after its first byte

/// A pair of neighbours: how often it occurs and at which positions, some out of date.
struct Pair {
  std::uint64_t key = 0;
  std::int64_t count = 0;
  std::vector<std::uint32_t> positions;
};

/// Pairs by key: open addressing over indices.
class PairTable {
 public:
  PairTable() : slots_(1 << 16, kEmpty) {}

  std::uint32_t find_or_add(std::uint64_t key) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = mix(key) & mask;
    for (; slots_[i] != kEmpty; i = (i + 1) & mask) {
      if (pairs_[slots_[i]].key == key) return slots_[i];
    }
    const auto added = static_cast<std::uint32_t>(pairs_.size());
    slots_[i] = added;
    pairs_.push_back({key, 0, {}});
    if (2 * pairs_.size() > slots_.size()) grow();
    return added;
  }
  Pair& operator[](std::uint32_t index) { return pairs_[index]; }
  [[nodiscard]] std::size_t size() const { return pairs_.size(); }

 private:
  static constexpr std::uint32_t kEmpty = 0xFFFFFFFF;

  void grow() {
    slots_.assign(2 * slots_.size(), kEmpty);
    const std::size_t mask = slots_.size() - 1;
    for (std::uint32_t pair = 0; pair < pairs_.size(); ++pair) {
      std::size_t i = mix(pairs_[pair].key) & mask;
      while (slots_[i] != kEmpty) i = (i + 1) & mask;
      slots_[i] = pair;
    }
  }

  std::vector<std::uint32_t> slots_;
  std::vector<Pair> pairs_;
};

class Learner {
 public:
  explicit Learner(const PieceCounts& pieces) : heap_(Later{*this}) {
    for (const std::uint8_t byte : byte_order()) {
      ids_[byte] = static_cast<std::int32_t>(learned_.tokens.size());
      learned_.tokens.emplace_back(1, static_cast<char>(byte));
    }
    lay_out(pieces);
    count_pairs();
  }

  LearnedMerges learn(std::int64_t merges) {
    while (static_cast<std::int64_t>(learned_.merges.size()) < merges && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const std::int64_t count = pairs_[best.pair].count;
      if (count == 0) continue;  // made and taken apart by one and the same merge
      if (count == best.count) {
        merge(best.pair);
      } else {
        heap_.push({count, best.pair});
      }
    }
    return std::move(learned_);
  }

 private:
  /// Counts only fall once a pair is in the heap, since new neighbours contain the new token; so
  /// the top of the heap is never too low.
  struct Candidate {
    std::int64_t count;
    std::uint32_t pair;
  };
  struct Later {
    Learner& learner;
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      return learner.is_less(learner.pairs_[a.pair].key, learner.pairs_[b.pair].key);
    }
  };

  [[nodiscard]] const std::string& token(std::uint64_t id) const {
    return learned_.tokens[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_less(std::uint64_t a, std::uint64_t b) const {
    if (a >> 32 != b >> 32) return token(a >> 32) < token(b >> 32);
    return token(a & 0xFFFFFFFF) < token(b & 0xFFFFFFFF);
  }
  [[nodiscard]] std::uint32_t bytes_of(std::int32_t id) const {
    return static_cast<std::uint32_t>(learned_.tokens[static_cast<std::size_t>(id)].size());
  }

  void lay_out(const PieceCounts& pieces);
  void count_pairs();
  void change(std::int32_t left, std::int32_t right, std::int64_t by, std::uint32_t at);
  void merge(std::uint32_t pair);
  void merge_at(std::uint32_t at, std::int32_t left, std::int32_t right, std::int32_t result);

  LearnedMerges learned_;
  std::array<std::int32_t, 256> ids_{};
  // By position, one for each byte of the pieces and one between them:
  std::vector<std::int32_t> symbols_;  ///< token that begins there, kInside or kBoundary
  std::vector<std::uint32_t> begins_;  ///< at the last byte of a token, where it begins
  std::vector<std::uint32_t> pieces_;  ///< the piece
  std::vector<std::int64_t> counts_;   ///< occurrences of each piece
  PairTable pairs_;
  std::vector<std::uint32_t> grown_;  ///< pairs that the present merge makes
  std::priority_queue<Candidate, std::vector<Candidate>, Later> heap_;
};

void Learner::lay_out(const PieceCounts& pieces) {
  std::size_t positions = 1;
  for (const PieceCounts::Entry& entry : pieces.entries()) positions += entry.bytes + 1;
  if (positions > std::numeric_limits<std::uint32_t>::max()) {
    throw Error(ExitCode::data,
                "vocabulary to train: expected distinct pieces of at most 4 GiB, "
                "found more; give less text to --input");
  }
  symbols_.reserve(positions);
  begins_.reserve(positions);
  pieces_.reserve(positions);
  const auto put = [this](std::int32_t symbol) {
    begins_.push_back(static_cast<std::uint32_t>(symbols_.size()));
    symbols_.push_back(symbol);
    pieces_.push_back(static_cast<std::uint32_t>(counts_.size()));
  };
  put(kBoundary);
  for (const PieceCounts::Entry& entry : pieces.entries()) {
    for (const char byte : pieces.text(entry)) put(ids_[static_cast<unsigned char>(byte)]);
    put(kBoundary);
    counts_.push_back(static_cast<std::int64_t>(entry.count));
  }
}

void Learner::count_pairs() {
  for (std::uint32_t at = 0; at + 1 < symbols_.size(); ++at) {
    change(symbols_[at], symbols_[at + 1], +1, at);
  }
  for (std::uint32_t pair = 0; pair < pairs_.size(); ++pair) {
    heap_.push({pairs_[pair].count, pair});
  }
  grown_.clear();
}

/// The pair whose left token begins at `at` occurs once more or less in its piece.
void Learner::change(std::int32_t left, std::int32_t right, std::int64_t by, std::uint32_t at) {
  if (left == kBoundary || right == kBoundary) return;
  const std::uint32_t index = pairs_.find_or_add(pair_key(left, right));
  Pair& pair = pairs_[index];
  pair.count += by * counts_[pieces_[at]];
  if (by < 0) return;
  if (pair.positions.empty()) grown_.push_back(index);
  pair.positions.push_back(at);
}

void Learner::merge(std::uint32_t pair) {
  const std::uint64_t key = pairs_[pair].key;
  const auto left = static_cast<std::int32_t>(key >> 32);
  const auto right = static_cast<std::int32_t>(key & 0xFFFFFFFF);
  const auto result = static_cast<std::int32_t>(learned_.tokens.size());
  learned_.tokens.push_back(token(key >> 32) + token(key & 0xFFFFFFFF));
  learned_.merges.emplace_back(left, right);
  const std::vector<std::uint32_t> positions = std::move(pairs_[pair].positions);
  grown_.clear();
  for (const std::uint32_t at : positions) merge_at(at, left, right, result);
  pairs_[pair].count = 0;
  pairs_[pair].positions = {};
  for (const std::uint32_t grown : grown_) heap_.push({pairs_[grown].count, grown});
}

void Learner::merge_at(std::uint32_t at, std::int32_t left, std::int32_t right,
                       std::int32_t result) {
  if (symbols_[at] != left) return;
  const std::uint32_t second = at + bytes_of(left);
  if (symbols_[second] != right) return;
  const std::uint32_t next = second + bytes_of(right);
  const std::uint32_t previous = begins_[at - 1];
  change(symbols_[previous], left, -1, previous);
  change(right, symbols_[next], -1, second);
  symbols_[at] = result;
  symbols_[second] = kInside;
  begins_[next - 1] = at;
  change(symbols_[previous], result, +1, previous);
  change(result, symbols_[next], +1, at);
}

}  // namespace

LearnedMerges learn_merges(PieceCounts pieces, std::int64_t merges) {
  Learner learner(pieces);
  pieces = {};  // frees them
  return learner.learn(merges);
}

}  // namespace hyperslab::io
