// SPDX-License-Identifier: Apache-2.0
#include "chat/chat_run.hpp"

#include <algorithm>

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

/// A part that is not trained and shorter is encoded again to find its last id.
constexpr std::size_t kShortHead = 64;

}  // namespace

void ChatRun::begin(TextPlace place, bool drops_spaces) {
  place_ = place;
  drops_spaces_ = drops_spaces;
}

void ChatRun::add(std::string_view text, bool is_trained) {
  if (drops_spaces_ && text_.empty()) text.remove_prefix(bytes_of_first_spaces(text));
  if (text.empty()) return;
  text_ += text;
  if (ends_.empty() || ends_.back().is_trained != is_trained) ends_.push_back({0, is_trained});
  ends_.back().at = text_.size();
}

void ChatRun::drop_last_spaces() {
  text_.resize(begin_of_last_spaces(text_));
  while (!ends_.empty() && (ends_.size() > 1 ? ends_[ends_.size() - 2].at : 0) >= text_.size()) {
    ends_.pop_back();
  }
  if (!ends_.empty()) ends_.back().at = text_.size();
}

std::size_t ChatRun::decoded_bytes(std::string_view text) const {
  std::size_t bytes = 0;
  for (const std::int32_t id : tokenizer_.encode_part(text, place_)) {
    bytes += tokenizer_.decode(id).size();
  }
  return bytes;
}

/// Writes most of a long first part, up to where the vocabulary sees no difference.
void ChatRun::write_head(ChatTokens& out) {
  if (ends_.size() < 2 || ends_.front().at < kShortHead) return;
  const std::size_t cut = tokenizer_.last_cut(std::string_view(text_).substr(0, ends_[0].at), 2);
  if (cut == std::string::npos) return;
  const auto ids = tokenizer_.encode_part(std::string_view(text_).substr(0, cut), place_);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.is_trained.resize(out.ids.size(), ends_.front().is_trained ? 1 : 0);
  text_.erase(0, cut);
  for (End& end : ends_) end.at -= cut;
  place_ = TextPlace::inside;
}

/// Borders of parts are found in the bytes that ids stand for. A part and all before it gives as
/// many as the ids up to its end, unless the last of these holds text of the next part, too.
void ChatRun::finish(ChatTokens& out) {
  if (text_.empty()) return;
  write_head(out);
  const auto ids = tokenizer_.encode_part(text_, place_);
  const std::size_t first = out.ids.size();
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  out.is_trained.resize(out.ids.size(), ends_.back().is_trained ? 1 : 0);
  std::size_t at = 0;
  std::size_t bytes = 0;
  for (std::size_t part = 0; part + 1 < ends_.size(); ++part) {
    const std::size_t border = decoded_bytes(std::string_view(text_).substr(0, ends_[part].at));
    while (at < ids.size()) {
      const std::size_t end = bytes + tokenizer_.decode(ids[at]).size();
      const bool crosses = end > border;
      if (crosses && (bytes >= border || !ends_[part].is_trained)) break;
      out.is_trained[first + at++] = ends_[part].is_trained ? 1 : 0;
      bytes = end;
    }
  }
  text_.clear();
  ends_.clear();
}

}  // namespace hyperslab::io
