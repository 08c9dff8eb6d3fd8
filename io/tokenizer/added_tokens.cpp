// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added_tokens.hpp"

#include <algorithm>

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

std::uint64_t edge(std::uint32_t node, char byte) {
  return std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
}

std::size_t pair_of(char first, char second) {
  return std::size_t{static_cast<unsigned char>(first)} << 8 | static_cast<unsigned char>(second);
}

}  // namespace

void AddedTokenSearch::add(const AddedToken& token, const std::string& text) {
  std::uint32_t node = 0;
  for (const char byte : text) {
    const auto next = static_cast<std::uint32_t>(ends_.size());
    const auto [found, is_new] = edges_.emplace(edge(node, byte), next);
    if (is_new) ends_.push_back(kNone);
    node = found->second;
  }
  if (ends_[node] != kNone) return;
  ends_[node] = static_cast<std::uint32_t>(tokens_.size());
  tokens_.push_back(token);
  if (!token.hidden) ++findable_;
  if (text.size() == 1) single_.set(static_cast<unsigned char>(text.front()));
  if (text.size() > 1) starts_.set(pair_of(text[0], text[1]));
}

AddedTokenSearch::Match AddedTokenSearch::longest_at(std::string_view text, std::size_t at) const {
  Match match;
  std::uint32_t node = 0;
  for (std::size_t end = at; end < text.size();) {
    const auto found = edges_.find(edge(node, text[end]));
    if (found == edges_.end()) break;
    node = found->second;
    ++end;
    if (ends_[node] != kNone) match = {at, end, ends_[node]};
  }
  return match;
}

AddedTokenSearch::Match AddedTokenSearch::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    const bool may_begin = single_[static_cast<unsigned char>(text[at])] ||
                           (at + 1 < text.size() && starts_[pair_of(text[at], text[at + 1])]);
    if (!may_begin) continue;
    const Match match = longest_at(text, at);
    if (match.begin != text.npos) return match;
  }
  return {};
}

void AddedTokenSearch::split(std::string_view text, std::vector<Part>& parts) const {
  parts.clear();
  std::size_t done = 0;  // a token that takes spaces may lie before it
  if (findable_ > 0) {
    for (Match match = find(text, 0); match.begin != text.npos; match = find(text, match.end)) {
      const AddedToken& token = tokens_[match.token];
      if (token.hidden) continue;
      std::size_t begin = match.begin;
      std::size_t end = match.end;
      if (token.takes_before) begin = std::max(begin_of_last_spaces(text.substr(0, begin)), done);
      if (token.takes_after) end += bytes_of_first_spaces(text.substr(end));
      if (begin >= end)
        continue;  // spaces that an earlier token took: none is left, as in tokenizers
      if (done < begin) parts.push_back({text.substr(done, begin - done)});
      parts.push_back({{}, token.id});
      done = end;
    }
  }
  if (done < text.size()) parts.push_back({text.substr(done)});
}

}  // namespace hyperslab::io
