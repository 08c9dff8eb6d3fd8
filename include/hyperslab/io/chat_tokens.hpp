// SPDX-License-Identifier: Apache-2.0
// Conversations to token ids, and files of conversations to token files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/io/chat.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

class AddedTokenSearch;

/// A conversation as tokens.
struct ChatTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> is_trained;  ///< 1 for ids that are targets
};

/// Turns pieces of one template into ids. Threads may use one at the same time.
class ChatEncoder {
 public:
  /// `tokenizer` must outlive this and take names of special tokens in texts as text; `vocabulary`:
  /// its path. Throws Error(data) with the path if a special token of `form` is missing.
  ChatEncoder(const Tokenizer& tokenizer, const std::string& vocabulary, const ChatTemplate& form);
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  [[nodiscard]] const ChatTemplate& form() const { return form_; }
  /// The special tokens that end an answer, as a rule one; none for renderings.
  [[nodiscard]] const std::vector<std::int32_t>& turn_ends() const { return turn_ends_; }
  /// The ids that transformers gives for the rendered text, but that no message's text names a
  /// special token. Text between two special tokens is encoded as one; an id that holds trained
  /// text and other text before it is trained, as in transformers' mask.
  [[nodiscard]] ChatTokens encode(std::span<const ChatPiece> pieces) const;
  /// The ids of a rendered conversation. Throws as ChatTemplate::render().
  [[nodiscard]] ChatTokens encode(std::span<const ChatMessage> messages, TrainOn train_on,
                                  ChatEnd end = ChatEnd::message) const {
    return encode(form_.render(messages, train_on, end));
  }
  /// The ids of texts that another program has rendered: names of special tokens are these tokens.
  /// TrainOn::last takes the last run of trained parts. For the template `rendered` alone.
  [[nodiscard]] ChatTokens encode_rendered(std::span<const ChatPiece> parts,
                                           TrainOn train_on) const;

 private:
  [[nodiscard]] const SpecialToken* token_of(const ChatPiece& piece) const;
  void add_all_tokens();

  const Tokenizer& tokenizer_;
  std::string vocabulary_;
  ChatTemplate form_;
  std::map<std::string, SpecialToken, std::less<>> tokens_;
  SpecialToken bos_;
  SpecialToken eos_;
  std::vector<std::int32_t> turn_ends_;
  std::shared_ptr<AddedTokenSearch> search_;  ///< all special tokens, for renderings
};

/// Inputs and choices for tokenize_chats().
struct ChatFiles {
  std::vector<std::string>
      inputs;          ///< files of JSON lines, a conversation each; `-`: standard input
  std::string output;  ///< .h5
  TrainOn train_on = TrainOn::assistant;
  std::int64_t longest = 0;  ///< tokens of a conversation, which is cut at a turn; 0: any number
  bool pairs = false;        ///< rows are pairs of answers, which are never cut
  bool skip_broken = false;  ///< leave out lines that hold no conversation, with a warning
};

/// Counts of tokenize_chats().
struct ChatFigures {
  std::int64_t conversations = 0;  ///< that are in the output
  std::int64_t messages = 0;       ///< in these conversations
  std::int64_t tokens = 0;
  std::int64_t trained = 0;            ///< tokens that count as targets
  std::int64_t without_answer = 0;     ///< conversations left out: nothing to be trained on
  std::int64_t too_long = 0;           ///< conversations left out: no answer ends early enough
  std::int64_t cut = 0;                ///< conversations of which messages at the end are left out
  std::int64_t messages_left_out = 0;  ///< messages that the cuts left out
};

/// Writes conversations as documents of an HDF5 file: `tokens`, `documents` (the first token of
/// each) and `loss_mask`. A pair becomes two documents, the chosen answer first, of together at
/// most `longest` tokens. A conversation of more than `longest` tokens ends with its last answer
/// that fits. Rows are encoded on all threads and written in their order. Throws Error(usage) for
/// another name of the output, Error(data) with file and line for a row that is no conversation or
/// that the template refuses, and if no conversation is left, Error(storage) for a failure to
/// write; then nothing is left of the output.
ChatFigures tokenize_chats(const ChatEncoder& encoder, const ChatFiles& files);

}  // namespace hyperslab::io
