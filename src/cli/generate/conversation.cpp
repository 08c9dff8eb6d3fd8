// SPDX-License-Identifier: Apache-2.0
#include "conversation.hpp"

#include <fmt/format.h>

#include <iterator>

#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {

using io::ChatRole;

Conversation::Conversation(const io::ChatEncoder& encoder, const std::string& system,
                           std::int64_t context)
    : encoder_(encoder), context_(context) {
  if (!system.empty()) messages_.push_back({.role = ChatRole::system, .text = system});
  first_ = messages_.size();
  try {
    messages_.push_back({.role = ChatRole::user, .text = {}});
    (void)prompt();
    messages_.pop_back();
  } catch (const Error& error) {
    throw Error(ExitCode::usage, fmt::format("--system: {}", error.what()));
  }
}

std::vector<std::int32_t> Conversation::prompt() const {
  return encoder_.encode(messages_, io::TrainOn::last, io::ChatEnd::prompt).ids;
}

/// Drops the oldest message of the user with its answer; false: only the newest one is left.
bool Conversation::drop_oldest() {
  const auto begin = messages_.begin() + static_cast<std::ptrdiff_t>(first_);
  if (std::next(begin) == messages_.end()) return false;
  messages_.erase(begin, std::next(begin, 2));
  ++dropped_;
  return true;
}

std::vector<std::int32_t> Conversation::ask(const std::string& text, std::int64_t room) {
  const std::vector<io::ChatMessage> before = messages_;
  const std::size_t dropped_before = dropped_;
  messages_.push_back({.role = ChatRole::user, .text = text});
  std::vector<std::int32_t> ids = prompt();
  // The last token of an answer is chosen, and never read.
  while (std::ssize(ids) + room > context_ + 1 && drop_oldest()) ids = prompt();
  if (std::ssize(ids) <= context_) return ids;
  messages_ = before;
  dropped_ = dropped_before;
  throw Error(ExitCode::data,
              fmt::format("a message of {} tokens, with those of the system and of the template: "
                          "the context takes {}; it is left out",
                          ids.size(), context_));
}

void Conversation::answer(const std::string& text) {
  messages_.push_back({.role = ChatRole::assistant, .text = text});
}

}  // namespace hyperslab::cli
