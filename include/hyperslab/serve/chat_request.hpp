// SPDX-License-Identifier: Apache-2.0
// A request of the chat interface (OpenAI's POST /v1/chat/completions), as read from its JSON.
#pragma once

#include <string_view>

#include "hyperslab/serve/completion_request.hpp"

namespace hyperslab::serve {

/// The conversation is the one prompt, as ServedModel::chats writes it with the words that ask for
/// an answer; names of special tokens in messages are text. The end of a turn ends an answer, and
/// so do the model's ends. Without max_tokens an answer has the rest of the context, as far as the
/// limits of a request go. Beside the fields of the interface: those that completions have.
/// Throws RequestError: 400 for fields that are wrong, not known or not supported, for messages
/// that the template refuses and for a model without a template, 404 for another model than this
/// one.
[[nodiscard]] CompletionRequest parse_chat_request(const ServedModel& model, std::string_view body);

}  // namespace hyperslab::serve
