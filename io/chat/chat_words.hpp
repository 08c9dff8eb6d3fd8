// SPDX-License-Identifier: Apache-2.0
// Changes of a message's text that families make before it is written.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "chat/chat_family.hpp"
#include "hyperslab/io/chat.hpp"

namespace hyperslab::io {

/// `text` without the characters at both ends that Python's str.strip() removes.
[[nodiscard]] std::string_view stripped(std::string_view text);

/// Index of the message from which on a thinking family writes reasoning: the last of the user that
/// is no answer of a tool; without one the last message.
[[nodiscard]] std::size_t last_query(std::span<const ChatMessage> messages);

/// An assistant's message as a thinking family writes it. `is_after_query`: it follows the last
/// query; `is_last`: no message follows.
[[nodiscard]] std::string with_reasoning(const ChatMessage& message, bool is_after_query,
                                         bool is_last);

/// Appends the calls of a message to its words in tags, a line each.
void append_calls(const ChatMessage& message, std::string& words);

}  // namespace hyperslab::io
