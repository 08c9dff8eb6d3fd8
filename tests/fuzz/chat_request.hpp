// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string_view>

#include "hyperslab/io/chat_tokens.hpp"
#include "hyperslab/serve/chat_request.hpp"

namespace hyperslab::fuzz {

/// Reads the body of a request for a chat; what is taken must fit into the model, and what is
/// refused must be the caller's fault.
inline void read_chat_request(std::string_view body) {
  static const auto tokenizer = io::open_tokenizer("bytes");
  static const io::ChatEncoder chats(*tokenizer, "bytes", io::find_chat_template("plain"));
  static const serve::ServedModel model = {
      "m", tokenizer.get(), tokenizer.get(), 64, 260, tokenizer->text_ends(), 13, &chats};
  try {
    const auto request = serve::parse_chat_request(model, body);
    if (request.prompts.size() != 1 || request.n < 1) std::abort();
    const std::int64_t length = std::ssize(request.prompts.front());
    if (length < 1 || length + request.sampling.max_tokens > model.context + 1) std::abort();
    for (const std::int32_t id : request.prompts.front()) {
      if (id < 0 || id > 255) std::abort();  // no text names a special token
    }
  } catch (const serve::RequestError& error) {
    if (error.status() != 400 && error.status() != 404) std::abort();
  }
}

}  // namespace hyperslab::fuzz
