// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hyperslab::io {

/// A token that is found in text before it is split.
struct AddedToken {
  std::string text;
  std::int32_t id = -1;
  bool special = false;       ///< is no text
  bool hidden = false;        ///< is found in no text, though it hides others that overlap
  bool normalized = false;    ///< is found in normalized text
  bool takes_before = false;  ///< with white space before it (lstrip)
  bool takes_after = false;   ///< and after it (rstrip)
  bool single_word = false;   ///< is found between white space and punctuation alone
  bool in_model = true;       ///< also a token that merging gives
};

/// Finds tokens in one text from left to right, of those that begin at one offset the longest, as
/// the package tokenizers, with encode_special_tokens if special ones are hidden.
class AddedTokenSearch {
 public:
  /// `text`: the token as it stands in the texts that are searched, not empty. Of two tokens with
  /// one text the first counts.
  void add(const AddedToken& token, const std::string& text);
  /// True if a token may be found.
  [[nodiscard]] bool is_empty() const { return findable_ == 0; }

  struct Part {
    std::string_view text;
    std::int32_t id = -1;  ///< -1: text between tokens, which is not empty
  };
  /// `text` in parts, in place of `parts`. O(bytes x longest token).
  void split(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Match {
    std::size_t begin = std::string_view::npos;  ///< npos: none
    std::size_t end = 0;
    std::size_t token = 0;
  };
  [[nodiscard]] Match find(std::string_view text, std::size_t from) const;
  [[nodiscard]] Match longest_at(std::string_view text, std::size_t at) const;

  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  std::vector<AddedToken> tokens_;
  std::size_t findable_ = 0;
  std::bitset<256> single_;                     ///< bytes that are a token
  std::bitset<std::size_t{256} * 256> starts_;  ///< pairs of bytes that a token begins with
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  ///< trie: node and byte to node
  std::vector<std::uint32_t> ends_{kNone};                  ///< token that ends at each node
};

}  // namespace hyperslab::io
