// SPDX-License-Identifier: Apache-2.0
// A request of the chat interface (OpenAI's POST /v1/chat/completions), as read from its JSON.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hyperslab/serve/completion_request.hpp"

namespace hyperslab::serve {

/// The tokens of the conversation that `messages` of the body's object hold, as ServedModel::chats
/// writes it with the words that ask for an answer; names of special tokens in messages are text.
/// Throws RequestError(400) for messages that are none, that the template refuses, or that cannot
/// fit into the context by their bytes, and for a model without a template.
[[nodiscard]] std::vector<std::int32_t> encode_messages(const ServedModel& model,
                                                        std::string_view body);

/// The conversation is the one prompt, by encode_messages(). The end of a turn ends an answer, and
/// so do the model's ends. Without max_tokens an answer has the rest of the context, as far as the
/// limits of a request go. Beside the fields of the interface: those that completions have.
/// Throws RequestError: 400 for fields that are wrong, not known or not supported, for messages
/// that the template refuses and for a model without a template, 404 for another model than this
/// one.
[[nodiscard]] CompletionRequest parse_chat_request(const ServedModel& model, std::string_view body);

}  // namespace hyperslab::serve
