// SPDX-License-Identifier: Apache-2.0
// Differences between two resolved decks.
#pragma once

#include <string>
#include <vector>

namespace hyperslab::run {

/// A key with another value than before.
struct DeckChange {
  std::string key;               ///< "optimizer.lr"
  std::string was;               ///< empty: the earlier deck does not have the key
  std::string is;                ///< empty: the later deck does not have it
  bool changes_training = true;  ///< false: layout, length, names, records
  friend bool operator==(const DeckChange&, const DeckChange&) = default;
};

/// The keys whose values differ, in the order of `is`, those that it lacks last. Both are decks as
/// they are written out: a section or a key per line.
[[nodiscard]] std::vector<DeckChange> deck_changes(const std::string& was, const std::string& is);

/// "optimizer.lr 0.003 -> 0.01, ..." of the changes that change the training, or of the others.
[[nodiscard]] std::string listed(const std::vector<DeckChange>& changes, bool changes_training);

/// Logs the keys that differ, after the words `what`: as a warning if it changes the training.
void report_deck_changes(const std::string& was, const std::string& is, const std::string& what);

}  // namespace hyperslab::run
