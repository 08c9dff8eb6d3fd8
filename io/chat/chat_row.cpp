// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "chat/row_json.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/io/chat.hpp"

namespace hyperslab::io {
namespace {

using RowJson = nlohmann::ordered_json;

[[noreturn]] void refuse_row(const std::string& problem) { throw Error(ExitCode::data, problem); }

/// Value under a key; null if there is none.
const RowJson& row_value(const RowJson& object, const char* key) {
  static const RowJson kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

/// `where`: "message 3: content".
const std::string& row_text(const RowJson& value, const std::string& where) {
  if (!value.is_string()) {
    refuse_row(fmt::format("{} must be a text, found {}", where, value.type_name()));
  }
  return value.get_ref<const std::string&>();
}

ChatRole role_of(const RowJson& message, const std::string& where) {
  const std::string& name = row_text(row_value(message, "role"), where + ": role");
  for (const ChatRole role :
       {ChatRole::system, ChatRole::user, ChatRole::assistant, ChatRole::tool}) {
    if (name == name_of(role)) return role;
  }
  refuse_row(fmt::format("{}: role: expected system, user, assistant or tool, found '{:.40}'",
                         where, printable(name)));
}

/// A text, or parts of the type text, one after the other.
std::string content_of(const RowJson& content, const std::string& where) {
  if (!content.is_array()) return row_text(content, where);
  std::string text;
  for (const RowJson& part : content) {
    const RowJson& type = part.is_object() ? row_value(part, "type") : part;
    if (type != "text") {
      refuse_row(fmt::format("{}: expected parts of the type text, found another one", where));
    }
    text += row_text(row_value(part, "text"), where + ": text");
  }
  return text;
}

ToolCall call_of(const RowJson& item, const std::string& where) {
  if (!item.is_object()) refuse_row(fmt::format("{} must be an object", where));
  const bool is_wrapped = item.contains("function");
  const RowJson& call = is_wrapped ? row_value(item, "function") : item;
  if (!call.is_object()) refuse_row(fmt::format("{}: function must be an object", where));
  const RowJson& arguments = row_value(call, "arguments");
  ToolCall out;
  out.name = row_text(row_value(call, "name"), where + ": name");
  out.arguments_as_text = arguments.is_string();
  if (!arguments.is_string() && !arguments.is_object()) {
    refuse_row(fmt::format("{}: arguments must be an object, or a text, found {}", where,
                           arguments.type_name()));
  }
  out.arguments =
      arguments.is_string() ? arguments.get_ref<const std::string&>() : python_json(arguments);
  return out;
}

std::vector<ToolCall> calls_of(const RowJson& list, const std::string& where) {
  std::vector<ToolCall> calls;
  if (list.is_null()) return calls;
  if (!list.is_array()) {
    refuse_row(fmt::format("{} must be a list, found {}", where, list.type_name()));
  }
  for (const RowJson& item : list) calls.push_back(call_of(item, where));
  return calls;
}

ChatMessage message_of(const RowJson& message, std::size_t number) {
  const std::string where = fmt::format("message {}", number);
  if (!message.is_object()) {
    refuse_row(fmt::format("{} must be an object, found {}", where, message.type_name()));
  }
  ChatMessage out;
  out.role = role_of(message, where);
  if (out.role == ChatRole::assistant) {
    out.calls = calls_of(row_value(message, "tool_calls"), where + ": tool_calls");
    const RowJson& reasoning = row_value(message, "reasoning_content");
    if (!reasoning.is_null()) {
      out.reasoning = row_text(reasoning, where + ": reasoning_content");
    }
  }
  const RowJson& content = row_value(message, "content");
  if (content.is_null() && !out.calls.empty()) return out;
  out.text = content_of(content, where + ": content");
  return out;
}

void refuse_tools(const RowJson& row) {
  const RowJson& tools = row_value(row, "tools");
  if (tools.is_null() || tools.empty()) return;
  refuse_row(
      "has tools, whose descriptions no template here writes; render such rows by "
      "jobs/data/render_chats.py");
}

/// Appends the messages under a key, of which there must be some.
void add_messages(const RowJson& row, const char* key, std::vector<ChatMessage>& out) {
  const RowJson& messages = row_value(row, key);
  if (!messages.is_array()) {
    refuse_row(fmt::format("the key '{}' must hold a list, found {}", key,
                           row.contains(key) ? messages.type_name() : "no such key"));
  }
  if (messages.empty()) refuse_row(fmt::format("has no messages: the list '{}' is empty", key));
  out.reserve(out.size() + messages.size());
  for (const RowJson& message : messages) out.push_back(message_of(message, out.size() + 1));
}

}  // namespace

std::vector<ChatMessage> read_chat(std::string_view line) {
  const RowJson row = read_row(line);
  refuse_tools(row);
  std::vector<ChatMessage> out;
  add_messages(row, "messages", out);
  return out;
}

ChatPair read_chat_pair(std::string_view line) {
  const RowJson row = read_row(line);
  refuse_tools(row);
  ChatPair pair;
  if (row.contains("prompt")) add_messages(row, "prompt", pair.chosen);
  pair.rejected = pair.chosen;
  add_messages(row, "chosen", pair.chosen);
  add_messages(row, "rejected", pair.rejected);
  return pair;
}

std::vector<ChatPiece> read_rendered(std::string_view line) {
  const RowJson row = read_row(line);
  const RowJson& parts = row_value(row, "rendered");
  if (!parts.is_array()) {
    refuse_row(fmt::format("the key 'rendered' must hold a list, found {}",
                           row.contains("rendered") ? parts.type_name() : "no such key"));
  }
  std::vector<ChatPiece> out;
  for (const RowJson& part : parts) {
    const std::string where = fmt::format("part {}", out.size() + 1);
    if (!part.is_object() || !row_value(part, "trained").is_boolean()) {
      refuse_row(fmt::format("{} must be an object with text and trained (true or false)", where));
    }
    out.push_back({.text = row_text(row_value(part, "text"), where + ": text"),
                   .is_trained = row_value(part, "trained").get<bool>()});
  }
  return out;
}

}  // namespace hyperslab::io
