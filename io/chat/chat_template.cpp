// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "chat/chat_family.hpp"
#include "chat/chat_words.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat.hpp"

namespace hyperslab::io {
namespace {

using PieceKind = ChatPiece::Kind;

/// Collects the pieces of a conversation.
class PieceList {
 public:
  explicit PieceList(const ChatFamily& family) : family_(family) {}

  void add_text(std::string_view text, bool is_trained) {
    if (text.empty()) return;
    const bool goes_on = !pieces_.empty() && pieces_.back().kind == PieceKind::text &&
                         pieces_.back().is_trained == is_trained;
    if (!goes_on) pieces_.push_back({PieceKind::text, {}, is_trained});
    pieces_.back().text += text;
  }
  /// Words of the family, which may hold special tokens.
  void add_form(std::string_view form, bool is_trained) {
    while (!form.empty()) {
      const Mark mark = first_mark(form);
      add_text(form.substr(0, mark.begin), is_trained);
      if (mark.begin == form.size()) return;
      const bool is_named = mark.kind == PieceKind::token;
      pieces_.push_back({mark.kind, is_named ? std::string(mark.name) : std::string(), is_trained});
      form.remove_prefix(mark.begin + mark.name.size());
    }
  }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  struct Mark {
    std::size_t begin;
    std::string_view name;
    PieceKind kind;
  };
  [[nodiscard]] Mark first_mark(std::string_view form) const {
    Mark first = {form.size(), {}, PieceKind::text};
    const auto look = [&](std::string_view name, PieceKind kind) {
      const std::size_t at = name.empty() ? form.npos : form.find(name);
      if (at < first.begin) first = {at, name, kind};
    };
    for (const std::string_view name : family_.tokens) look(name, PieceKind::token);
    for (const std::string_view name : family_.optional_tokens) look(name, PieceKind::token);
    look(kBos, PieceKind::bos);
    look(kEos, PieceKind::eos);
    return first;
  }

  const ChatFamily& family_;
  std::vector<ChatPiece> pieces_;
};

/// Writes the messages of one conversation.
class ChatWriter {
 public:
  ChatWriter(const ChatFamily& family, std::span<const ChatMessage> messages, TrainOn train_on)
      : family_(family), messages_(messages), train_on_(train_on), out_(family) {
    begins_with_system_ = !messages.empty() && messages.front().role == ChatRole::system;
    if (family.thinks && !messages.empty()) query_ = last_query(messages);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == ChatRole::assistant) last_answer_ = i;
    }
  }

  std::vector<ChatPiece> write(ChatEnd end) {
    check();
    out_.add_form(family_.start, everything());
    if (!begins_with_system_ && family_.default_system) {
      add(family_.system, *family_.default_system, everything());
    }
    for (std::size_t i = 0; i < messages_.size(); ++i) add_message(i);
    out_.add_form(end == ChatEnd::prompt ? family_.prompt : family_.finish, everything());
    return out_.take();
  }

 private:
  [[nodiscard]] bool everything() const { return train_on_ == TrainOn::all; }
  [[nodiscard]] bool is_trained(std::size_t i) const {
    if (everything()) return true;
    return messages_[i].role == ChatRole::assistant &&
           (train_on_ == TrainOn::assistant || i == last_answer_);
  }
  [[noreturn]] void fail(std::size_t i, const std::string& problem) const {
    throw Error(ExitCode::data, fmt::format("message {} ({}): the template {} {}", i + 1,
                                            name_of(messages_[i].role), family_.name, problem));
  }

  void check() const {
    const bool system_apart =
        begins_with_system_ && family_.system_place == SystemPlace::first_user;
    const std::size_t first = system_apart ? 1 : 0;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      check_message(i);
      if (!family_.alternates || i < first) continue;
      const bool is_turn_of_user = (i - first) % 2 == 0;
      const ChatRole expected = is_turn_of_user ? ChatRole::user : ChatRole::assistant;
      if (messages_[i].role == expected) continue;
      fail(i, fmt::format("expects turns of user and assistant, and here one of the {}",
                          name_of(expected)));
    }
    if (system_apart && messages_.size() == 1) fail(0, "expects a message of the user after it");
  }

  void check_message(std::size_t i) const {
    const ChatMessage& message = messages_[i];
    const bool has_tools =
        family_.tools == ToolForm::hermes || family_.tools == ToolForm::hermes_texts;
    if (message.role == ChatRole::system && family_.system_place == SystemPlace::nowhere) {
      fail(i, "has no place for a system message; put its text into the user's first message");
    }
    if (message.role == ChatRole::tool && family_.tools == ToolForm::refused) {
      fail(i, "has no form here for answers of tools");
    }
    if (!message.calls.empty() && !has_tools) fail(i, "has no form here for tool_calls");
    if (family_.tools != ToolForm::hermes) return;
    const bool has_texts = std::ranges::any_of(message.calls, &ToolCall::arguments_as_text);
    if (has_texts) {
      fail(i, "would write arguments in quotes that are a text; give them as an object");
    }
  }

  void add(const ChatForm& form, std::string_view text, bool is_trained) {
    out_.add_form(form.begin, everything());
    out_.add_form(form.lead, is_trained);
    out_.add_text(text, is_trained);
    out_.add_form(form.end, is_trained);
    out_.add_form(form.rest, everything());
  }

  void add_message(std::size_t i) {
    const ChatMessage& message = messages_[i];
    const bool trims = family_.trim == ChatTrim::each || family_.trim == ChatTrim::joined;
    const std::string_view text = trims ? stripped(message.text) : message.text;
    switch (message.role) {
      case ChatRole::system: return add_system(i, text);
      case ChatRole::user: return add_user(i, text);
      case ChatRole::assistant: return add_answer(i, text);
      case ChatRole::tool: return add_result(i, text);
    }
  }

  void add_system(std::size_t i, std::string_view text) {
    if (family_.system_place == SystemPlace::first_user) return;  // it is in the user's
    if (family_.drops_empty_system && text.empty()) return;
    add(i == 0 ? family_.system : family_.later_system, text, is_trained(i));
  }

  void add_user(std::size_t i, std::string_view text) {
    const bool has_system =
        i == 1 && begins_with_system_ && family_.system_place == SystemPlace::first_user;
    if (!has_system) return add(family_.user, text, is_trained(i));
    const bool joined = family_.trim == ChatTrim::joined;
    std::string both(family_.system.begin);
    both += messages_.front().text;
    both += family_.system.end;
    both += joined ? std::string_view(messages_[i].text) : text;
    add(family_.user, joined ? stripped(both) : std::string_view(both), is_trained(i));
  }

  void add_answer(std::size_t i, std::string_view text) {
    const ChatMessage& message = messages_[i];
    if (family_.trim == ChatTrim::answer) text = stripped(text);
    if (!family_.thinks && message.calls.empty()) {
      return add(family_.assistant, text, is_trained(i));
    }
    std::string words(text);
    if (family_.thinks) words = with_reasoning(message, i > query_, i + 1 == messages_.size());
    append_calls(message, words);
    add(family_.assistant, words, is_trained(i));
  }

  /// Answers of tools that follow each other are one turn of the user in the form of tags.
  void add_result(std::size_t i, std::string_view text) {
    if (family_.tools == ToolForm::message) return add(family_.tool, text, is_trained(i));
    const auto is_result = [this](std::size_t k) {
      return k < messages_.size() && messages_[k].role == ChatRole::tool;
    };
    if (i == 0 || !is_result(i - 1)) out_.add_form("<|im_start|>user", everything());
    out_.add_text("\n<tool_response>\n", everything());
    out_.add_text(text, everything());
    out_.add_text("\n</tool_response>", everything());
    if (!is_result(i + 1)) out_.add_form("<|im_end|>\n", everything());
  }

  const ChatFamily& family_;
  std::span<const ChatMessage> messages_;
  TrainOn train_on_;
  PieceList out_;
  bool begins_with_system_ = false;
  std::size_t query_ = 0;        ///< last_query() for families that think
  std::size_t last_answer_ = 0;  ///< the assistant's last message
};

std::vector<std::string_view> without_empty(std::span<const std::string_view> names) {
  std::vector<std::string_view> found(names.begin(), names.end());
  std::erase(found, std::string_view());
  return found;
}

}  // namespace

std::string_view ChatTemplate::name() const { return family_->name; }

bool ChatTemplate::is_rendered() const { return family_->is_rendered; }

std::string_view ChatTemplate::answer_lead() const { return family_->assistant.lead; }

std::vector<std::string_view> ChatTemplate::required_tokens() const {
  return without_empty(family_->tokens);
}

std::vector<std::string_view> ChatTemplate::optional_tokens() const {
  return without_empty(family_->optional_tokens);
}

std::vector<ChatPiece> ChatTemplate::render(std::span<const ChatMessage> messages, TrainOn train_on,
                                            ChatEnd end) const {
  require(!family_->is_rendered, "a template that writes nothing");
  return ChatWriter(*family_, messages, train_on).write(end);
}

}  // namespace hyperslab::io
