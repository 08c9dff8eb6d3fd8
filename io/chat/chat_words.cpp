// SPDX-License-Identifier: Apache-2.0
#include "chat/chat_words.hpp"

#include "tokenizer/utf8.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kReasoning = "<think>";
constexpr std::string_view kReasoningEnd = "</think>";

/// str.isspace() of Python: White_Space, and the separators of files, groups, records and units.
bool is_python_space(std::uint32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::string_view without_first_lines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view without_last_lines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

bool is_answer_of_tool(std::string_view text) {
  return text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
}

}  // namespace

std::string_view stripped(std::string_view text) {
  while (!text.empty()) {
    const Character first = character_at(text, 0);
    if (!is_python_space(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    const Character last = character_before(text, text.size());
    if (!is_python_space(last.code)) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

std::size_t last_query(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == ChatRole::user && !is_answer_of_tool(messages[i].text)) return i;
  }
  return messages.size() - 1;
}

std::string with_reasoning(const ChatMessage& message, bool is_after_query, bool is_last) {
  std::string_view text = message.text;
  std::string_view reasoning;
  if (message.reasoning) {
    reasoning = *message.reasoning;
  } else if (const std::size_t end = text.find(kReasoningEnd); end != text.npos) {
    reasoning = without_last_lines(text.substr(0, end));
    const std::size_t begin = reasoning.rfind(kReasoning);
    if (begin != reasoning.npos) reasoning.remove_prefix(begin + kReasoning.size());
    reasoning = without_first_lines(reasoning);
    text = without_first_lines(text.substr(text.rfind(kReasoningEnd) + kReasoningEnd.size()));
  }
  if (!is_after_query || (!is_last && reasoning.empty())) return std::string(text);
  std::string words = "<think>\n";
  words += without_last_lines(without_first_lines(reasoning));
  words += "\n</think>\n\n";
  words += without_first_lines(text);
  return words;
}

void append_calls(const ChatMessage& message, std::string& words) {
  for (const ToolCall& call : message.calls) {
    if (!words.empty()) words += '\n';
    words += "<tool_call>\n";
    words += R"({"name": ")" + call.name + R"(", "arguments": )" + call.arguments;
    words += "}\n</tool_call>";
  }
}

}  // namespace hyperslab::io
