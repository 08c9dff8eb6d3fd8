// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/chat_tokens.hpp"

namespace hyperslab::io {

/// Text between two special tokens, which is encoded as one, in parts that are trained or not.
class ChatRun {
 public:
  explicit ChatRun(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Begins another text. `drops_spaces`: without the white space at its beginning.
  void begin(TextPlace place, bool drops_spaces);
  void add(std::string_view text, bool is_trained);
  void drop_last_spaces();
  /// Appends the ids of the text, and empties it.
  void finish(ChatTokens& out);

 private:
  /// The end of a part.
  struct End {
    std::size_t at = 0;
    bool is_trained = false;
  };
  void write_head(ChatTokens& out);
  [[nodiscard]] std::size_t decoded_bytes(std::string_view text) const;

  const Tokenizer& tokenizer_;
  TextPlace place_ = TextPlace::start;
  bool drops_spaces_ = false;
  std::string text_;
  std::vector<End> ends_;
};

}  // namespace hyperslab::io
