// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <span>
#include <string>
#include <vector>

namespace hyperslab::deck {

/// Position in a deck: a line and column of the file, both from 1, or the index of an override.
struct Mark {
  int override_index = -1;  ///< -1: the file
  int line = 1;
  int column = 1;
  friend auto operator<=>(const Mark&, const Mark&) = default;
};

/// Problems of a deck, gathered until everything has been looked at.
class Problems {
 public:
  /// `key` is the whole path, "model.heads"; empty if no key is to blame.
  void add(Mark mark, std::string key, std::string text);
  [[nodiscard]] std::size_t size() const { return problems_.size(); }
  /// Throws Error(usage) with a line per problem, sorted by mark, if there is any. It lists up to
  /// 50 and counts the others.
  void raise(const std::string& file, std::span<const std::string> overrides) const;

 private:
  struct Problem {
    Mark mark;
    std::string key;
    std::string text;
  };
  std::vector<Problem> problems_;
};

}  // namespace hyperslab::deck
