// SPDX-License-Identifier: Apache-2.0
// The bytes are the body of a request for completions, and of one for a chat.
#include "fuzz/chat_request.hpp"
#include "fuzz/input.hpp"
#include "hyperslab/serve/completion_request.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  static const auto tokenizer = io::open_tokenizer("bytes");
  static const serve::ServedModel model = {"m", tokenizer.get(),       tokenizer.get(), 64,
                                           260, tokenizer->text_ends()};
  try {
    const auto request = serve::parse_completion_request(model, fuzz::text_of(data, size));
    if (request.choices() == 0 || request.choices() > serve::kMostChoices) std::abort();
    for (const auto& prompt : request.prompts) {
      if (prompt.empty() || std::ssize(prompt) > model.context) std::abort();
      for (const std::int32_t id : prompt) {
        if (id < 0 || id >= model.vocabulary) std::abort();
      }
    }
  } catch (const serve::RequestError& error) {
    if (error.status() != 400 && error.status() != 404) std::abort();
  }
  fuzz::read_chat_request(fuzz::text_of(data, size));
  return 0;
}
