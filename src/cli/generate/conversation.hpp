// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/io/chat_tokens.hpp"

namespace hyperslab::cli {

/// A conversation with a model, as far as its context holds it.
class Conversation {
 public:
  /// `system`: text of the message that stands first; empty: there is none. `context`: tokens. The
  /// encoder must outlive this. Throws Error(usage) if the template refuses the system message.
  Conversation(const io::ChatEncoder& encoder, const std::string& system, std::int64_t context);

  /// Adds a message of the user and returns the prompt for its answer. The oldest turns are dropped
  /// until `room` tokens fit behind the prompt, or nothing else is left. Throws Error(data) if the
  /// message alone does not fit into the context; then it is not added.
  [[nodiscard]] std::vector<std::int32_t> ask(const std::string& text, std::int64_t room);
  /// Adds the answer to the newest message of the user.
  void answer(const std::string& text);
  /// Takes the newest message of the user back.
  void take_back() { messages_.pop_back(); }
  /// Begins another conversation, with the system message.
  void reset() { messages_.resize(first_); }
  /// Messages of the user that were dropped so far.
  [[nodiscard]] std::size_t dropped() const { return dropped_; }

 private:
  [[nodiscard]] std::vector<std::int32_t> prompt() const;
  bool drop_oldest();

  const io::ChatEncoder& encoder_;
  std::int64_t context_;
  std::vector<io::ChatMessage> messages_;
  std::size_t first_ = 0;  ///< message after the system's
  std::size_t dropped_ = 0;
};

}  // namespace hyperslab::cli
