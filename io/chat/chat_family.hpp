// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace hyperslab::io {

/// Words around a message. The names of the family's tokens in them are these tokens, and kBos and
/// kEos are the tokens that begin and end texts.
struct ChatForm {
  std::string_view begin = {};
  std::string_view lead = {};  ///< before the text, trained with it
  std::string_view end = {};   ///< after the text, trained with it
  std::string_view rest = {};  ///< after that, never trained with it
};
inline constexpr std::string_view kBos = "{bos}";
inline constexpr std::string_view kEos = "{eos}";

/// Place of a system message.
enum class SystemPlace : std::uint8_t {
  anywhere,    ///< a message like others
  first_user,  ///< one at the beginning, within the user's first message
  nowhere,     ///< refused
};

/// White space around texts that is removed, as str.strip() of Python does.
enum class ChatTrim : std::uint8_t {
  none,
  each,    ///< every text
  joined,  ///< user's and system's text as one, and the assistant's
  answer,  ///< only the assistant's text
};

/// Form of calls of tools and of their answers.
enum class ToolForm : std::uint8_t {
  refused,
  message,       ///< answers are messages of the role tool; calls are refused
  hermes,        ///< tags in the words of the assistant and of the user; arguments are objects
  hermes_texts,  ///< and arguments that are a text stand as they are
};

/// A family of models: the row of the table of templates.
struct ChatFamily {
  std::string_view name;
  std::array<std::string_view, 4> tokens = {};           ///< that a vocabulary must have
  std::array<std::string_view, 2> optional_tokens = {};  ///< text in vocabularies without them
  std::string_view start = {};                           ///< before the first message
  ChatForm system = {};  ///< form of one that begins the conversation
  ChatForm later_system = {};
  ChatForm user = {};
  ChatForm assistant = {};
  ChatForm tool = {};
  std::string_view prompt = {};  ///< asks for an answer
  std::string_view finish = {};  ///< after the last message, where no answer is asked for
  SystemPlace system_place = SystemPlace::anywhere;
  std::optional<std::string_view> default_system = {};  ///< text where no message begins with one
  bool drops_empty_system = false;
  bool alternates = false;  ///< user and assistant take turns, and the user begins
  ChatTrim trim = ChatTrim::none;
  ToolForm tools = ToolForm::refused;
  bool is_rendered = false;  ///< rows hold renderings, which no template is to write
  bool thinks = false;  ///< the last answers have their reasoning before them, others have none
};

[[nodiscard]] std::span<const ChatFamily> chat_families();

}  // namespace hyperslab::io
