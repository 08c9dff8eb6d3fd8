// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/piece_encoder.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

namespace hyperslab::io {
namespace {

constexpr std::size_t kLongPiece = 100;  ///< from here on a heap finds the next merge

}  // namespace

BpeTables::BpeTables(const MergeVocabulary& vocabulary, const Alphabet& symbols, bool whole_pieces)
    : alphabet(symbols), merges(vocabulary.merges) {
  if (!whole_pieces) return;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    whole.emplace(vocabulary.tokens[id], static_cast<std::int32_t>(id));
  }
}

PieceEncoder::PieceEncoder(const BpeTables& tables) : tables_(tables), cache_(kSlots) {}

void PieceEncoder::append(std::string_view piece, std::vector<std::int32_t>& ids) {
  if (piece.size() >= kKeyWords * sizeof(std::uint64_t)) {
    merge(piece);
    ids.insert(ids.end(), ids_.begin(), ids_.end());
    return;
  }
  std::array<std::uint64_t, kKeyWords> key{};
  std::memcpy(key.data(), piece.data(), piece.size());
  key.back() |= std::uint64_t{piece.size()} << 56;
  std::uint64_t hash = 0;
  for (const std::uint64_t word : key) hash = mix(hash ^ word);
  Slot& slot = cache_[hash % kSlots];
  if (slot.key != key) {
    merge(piece);
    if (ids_.size() > kMaxIds) {
      ids.insert(ids.end(), ids_.begin(), ids_.end());
      return;
    }
    slot.key = key;
    slot.count = static_cast<std::uint32_t>(ids_.size());
    std::copy(ids_.begin(), ids_.end(), slot.ids.begin());
  }
  ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
}

void PieceEncoder::merge(std::string_view piece) {
  if (!tables_.whole.empty()) {
    const auto found = tables_.whole.find(piece);
    if (found != tables_.whole.end()) return ids_.assign(1, found->second);
  }
  ids_.clear();
  tables_.alphabet.append(piece, ids_);
  if (ids_.empty()) return;
  ranks_.assign(ids_.size(), MergeTable::kNone);
  for (std::size_t i = 0; i + 1 < ids_.size(); ++i) {
    ranks_[i] = tables_.merges.find(ids_[i], ids_[i + 1]).rank;
  }
  ids_.size() < kLongPiece ? merge_short() : merge_long();
}

/// The merge of lowest rank first, of equal ones the leftmost: a scan for each.
void PieceEncoder::merge_short() {
  while (ids_.size() > 1) {
    const auto best = std::ranges::min_element(ranks_);
    if (*best == MergeTable::kNone) return;
    const auto i = best - ranks_.begin();
    const auto at = static_cast<std::size_t>(i);
    ids_[at] = tables_.merges.find(ids_[at], ids_[at + 1]).result;
    ids_.erase(ids_.begin() + i + 1);
    ranks_.erase(best + 1);
    if (at > 0) ranks_[at - 1] = tables_.merges.find(ids_[at - 1], ids_[at]).rank;
    ranks_[at] =
        at + 1 < ids_.size() ? tables_.merges.find(ids_[at], ids_[at + 1]).rank : MergeTable::kNone;
  }
}

/// Merges in the order of merge_short(), by a heap of (rank, index) over a linked list. Entries
/// whose rank is no longer their index's are skipped.
void PieceEncoder::merge_long() {
  const auto n = static_cast<std::uint32_t>(ids_.size());
  std::vector<std::uint32_t> next(n);
  std::vector<std::uint32_t> previous(n);
  std::vector<std::uint64_t> entries;
  for (std::uint32_t i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (ranks_[i] != MergeTable::kNone) entries.push_back((std::uint64_t{ranks_[i]} << 32) | i);
  }
  std::priority_queue heap(std::greater<>(), std::move(entries));
  const auto rank_pair = [&](std::uint32_t i) {
    ranks_[i] = next[i] < n ? tables_.merges.find(ids_[i], ids_[next[i]]).rank : MergeTable::kNone;
    if (ranks_[i] != MergeTable::kNone) heap.push((std::uint64_t{ranks_[i]} << 32) | i);
  };
  while (!heap.empty()) {
    const std::uint64_t entry = heap.top();
    heap.pop();
    const auto i = static_cast<std::uint32_t>(entry);
    if (ranks_[i] != entry >> 32) continue;
    const std::uint32_t gone = next[i];
    ids_[i] = tables_.merges.find(ids_[i], ids_[gone]).result;
    ranks_[gone] = MergeTable::kNone;
    next[i] = next[gone];
    if (next[i] < n) previous[next[i]] = i;
    rank_pair(i);
    if (i > 0) rank_pair(previous[i]);
  }
  compact(next);
}

void PieceEncoder::compact(std::span<const std::uint32_t> next) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ids_.size(); i = next[i]) ids_[kept++] = ids_[i];
  ids_.resize(kept);
}

}  // namespace hyperslab::io
