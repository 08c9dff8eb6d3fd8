// SPDX-License-Identifier: Apache-2.0
// Conversations as the families of models write them: messages become pieces of text and special
// tokens, each marked as trained or not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// Author of a message.
enum class ChatRole : std::uint8_t { system, user, assistant, tool };
[[nodiscard]] constexpr std::string_view name_of(ChatRole role) {
  constexpr std::string_view kNames[] = {"system", "user", "assistant", "tool"};
  return kNames[static_cast<std::size_t>(role)];
}

/// A call of a tool by the assistant.
struct ToolCall {
  std::string name;
  std::string arguments;           ///< JSON as Python's json.dumps writes it, or the text itself
  bool arguments_as_text = false;  ///< they were given as a text that holds JSON
};

/// One turn of a conversation.
struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string text = {};
  std::optional<std::string> reasoning = {};  ///< thoughts before the text, given apart from it
  std::vector<ToolCall> calls = {};           ///< after the text
};

/// Tokens that are trained on: of the assistant's messages (or of the last of them) the words and
/// the token that ends them; or all.
enum class TrainOn : std::uint8_t { last, assistant, all };

/// A rendering ends with the last message, or with the words that ask for an answer.
enum class ChatEnd : std::uint8_t { message, prompt };

/// A part of a rendered conversation.
struct ChatPiece {
  enum class Kind : std::uint8_t {
    text,   ///< text, whatever names of special tokens it holds
    token,  ///< the special token of this name
    bos,    ///< the token that begins a text in the vocabulary
    eos,    ///< the token that ends one
  };
  Kind kind = Kind::text;
  std::string text;
  bool is_trained = false;
  friend bool operator==(const ChatPiece&, const ChatPiece&) = default;
};

struct ChatFamily;

/// The way in which a family of models writes conversations.
class ChatTemplate {
 public:
  explicit ChatTemplate(const ChatFamily& family) : family_(&family) {}
  [[nodiscard]] std::string_view name() const;
  /// True for `rendered`: rows hold texts that another program has rendered (read_rendered()).
  [[nodiscard]] bool is_rendered() const;
  /// Special tokens that a vocabulary must have for it.
  [[nodiscard]] std::vector<std::string_view> required_tokens() const;
  /// Words that are special tokens in vocabularies that have them, and text in others.
  [[nodiscard]] std::vector<std::string_view> optional_tokens() const;
  /// Text between the header of an answer and its words; empty for most.
  [[nodiscard]] std::string_view answer_lead() const;
  /// The pieces of a conversation, in their order; neighbours that are text differ in is_trained.
  /// Throws Error(data) that names the message (from 1) if the family's own template refuses the
  /// conversation, or writes it in a way that is not known here.
  [[nodiscard]] std::vector<ChatPiece> render(std::span<const ChatMessage> messages,
                                              TrainOn train_on,
                                              ChatEnd end = ChatEnd::message) const;

 private:
  const ChatFamily* family_;
};

/// The use of a template: for rows of a file, which may also be rendered by another program, or for
/// conversations that a model answers.
enum class ChatUse : std::uint8_t { rows, answers };

/// Names of all templates for a use, in the order in which they are listed for people.
[[nodiscard]] std::vector<std::string_view> chat_template_names(ChatUse use = ChatUse::rows);
/// The template of this name. Throws Error(usage) with the names that there are.
[[nodiscard]] ChatTemplate find_chat_template(std::string_view name);

/// The template that the folder of a vocabulary names: chat_template.jinja, else `chat_template` of
/// tokenizer_config.json, of several the one named `default`. Throws Error(data) with the file
/// and a remedy for `use` if there is none, or one that is none of those known (by a fingerprint of
/// its source).
[[nodiscard]] ChatTemplate chat_template_of(const std::string& vocabulary,
                                            ChatUse use = ChatUse::rows);

/// The template that a published one with this fingerprint_of_template() is, if it is known.
[[nodiscard]] std::optional<ChatTemplate> known_chat_template(std::uint64_t fingerprint);

/// Number that identifies the source of a Jinja template: a line break at its end, and the ways of
/// writing a line break, make no difference, as in what Jinja renders.
[[nodiscard]] std::uint64_t fingerprint_of_template(std::string_view source);

/// Reads a line of JSON: an object with `messages`, a list of objects with `role` and `content` (a
/// text, or a list of {"type": "text", "text": ...} which are joined), of the assistant also
/// `reasoning_content` and `tool_calls`. Other keys of messages are passed over. Throws Error(data)
/// without the place of the line for all else: no JSON in UTF-8, keys that stand twice, deep
/// nesting, numbers that are too large, other roles, images, `tools`.
[[nodiscard]] std::vector<ChatMessage> read_chat(std::string_view line);

/// Two answers to the same messages.
struct ChatPair {
  std::vector<ChatMessage> chosen;
  std::vector<ChatMessage> rejected;
};
/// Reads a line of JSON: an object with `chosen` and `rejected`, each a list of messages as above,
/// and perhaps `prompt`, messages before both. Throws as read_chat().
[[nodiscard]] ChatPair read_chat_pair(std::string_view line);

/// Reads a line of JSON with the parts of a rendered conversation: an object with `rendered`, a
/// list of {"text": TEXT, "trained": true or false}. Throws as read_chat().
[[nodiscard]] std::vector<ChatPiece> read_rendered(std::string_view line);

}  // namespace hyperslab::io
