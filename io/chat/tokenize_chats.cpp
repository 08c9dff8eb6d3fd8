// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dataset/token_writer.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat_tokens.hpp"
#include "hyperslab/io/vocabulary_record.hpp"
#include "tokenizer/json_lines.hpp"

namespace hyperslab::io {
namespace {

/// A row as it is written, or why it is not.
struct ChatRow {
  ChatTokens tokens;    ///< none if it is left out
  ChatTokens rejected;  ///< a pair's second answer
  std::int64_t messages = 0;
  std::int64_t left_out = 0;  ///< messages
  bool has_answer = true;
  std::string problem;
};

bool has_trained(const ChatTokens& tokens) {
  return std::ranges::find(tokens.is_trained, 1) != tokens.is_trained.end();
}

/// Encodes the rows of one set of files.
class ChatRows {
 public:
  ChatRows(const ChatEncoder& encoder, const ChatFiles& files) : encoder_(encoder), files_(files) {}

  [[nodiscard]] ChatRow encode(std::string_view line) const {
    ChatRow row;
    try {
      if (files_.pairs) {
        encode(read_chat_pair(line), row);
      } else if (encoder_.form().is_rendered()) {
        take(encoder_.encode_rendered(read_rendered(line), files_.train_on), row);
      } else {
        encode(read_chat(line), row);
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      row.problem = error.what();
    }
    return row;
  }

 private:
  using Messages = std::span<const ChatMessage>;

  void encode(Messages messages, ChatRow& row) const {
    row.messages = std::ssize(messages);
    take(encoder_.encode(messages, files_.train_on), row);
    if (row.has_answer && row.tokens.ids.empty()) cut(messages, row);
  }

  void encode(const ChatPair& pair, ChatRow& row) const {
    row.messages = std::ssize(pair.chosen) + std::ssize(pair.rejected);
    ChatTokens chosen = encoder_.encode(pair.chosen, files_.train_on);
    ChatTokens rejected = encoder_.encode(pair.rejected, files_.train_on);
    row.has_answer = has_trained(chosen) && has_trained(rejected);
    const auto tokens = std::ssize(chosen.ids) + std::ssize(rejected.ids);
    if (!row.has_answer || (files_.longest > 0 && tokens > files_.longest)) return;
    row.tokens = std::move(chosen);
    row.rejected = std::move(rejected);
  }

  /// Keeps the tokens if they have something to train on, and fit.
  void take(ChatTokens tokens, ChatRow& row) const {
    row.has_answer = has_trained(tokens);
    if (row.has_answer && fits(tokens)) row.tokens = std::move(tokens);
  }

  [[nodiscard]] bool fits(const ChatTokens& tokens) const {
    return files_.longest == 0 || std::ssize(tokens.ids) <= files_.longest;
  }

  /// Takes the most messages up to an answer that fit.
  void cut(Messages messages, ChatRow& row) const {
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == ChatRole::assistant) ends.push_back(i + 1);
    }
    const auto does_fit = [&](std::size_t end) {
      ChatTokens tokens = encoder_.encode(messages.first(end), files_.train_on);
      if (!fits(tokens)) return false;
      if (tokens.ids.size() <= row.tokens.ids.size()) return true;
      row.tokens = std::move(tokens);
      row.messages = static_cast<std::int64_t>(end);
      return true;
    };
    (void)std::ranges::partition_point(ends, does_fit);
    row.left_out = std::ssize(messages) - row.messages;
  }

  const ChatEncoder& encoder_;
  const ChatFiles& files_;
};

void count_row(const ChatRow& row, ChatFigures& figures) {
  if (!row.has_answer) {
    ++figures.without_answer;
  } else if (row.tokens.ids.empty()) {
    ++figures.too_long;
  } else {
    ++figures.conversations;
    figures.messages += row.messages;
    for (const ChatTokens* tokens : {&row.tokens, &row.rejected}) {
      const auto& trained = tokens->is_trained;
      figures.tokens += std::ssize(tokens->ids);
      figures.trained += std::reduce(trained.begin(), trained.end(), std::int64_t{0});
    }
    figures.messages_left_out += row.left_out;
    if (row.left_out > 0) ++figures.cut;
  }
}

void append_chats(const std::string& path, const ChatFiles& files, const ChatRows& rows,
                  TokenWriter& writer, ChatFigures& figures) {
  LineBatches batches(path, {.skip_broken = files.skip_broken, .wanted = "a conversation"});
  std::vector<std::string_view> lines;
  std::vector<ChatRow> found;
  while (batches.next(lines)) {
    found.assign(lines.size(), {});
    LineBatches::for_each(lines, [&](std::size_t i) { found[i] = rows.encode(lines[i]); });
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (!batches.take(lines, i, found[i].problem)) continue;
      count_row(found[i], figures);
      for (const ChatTokens* tokens : {&found[i].tokens, &found[i].rejected}) {
        if (!tokens->ids.empty()) writer.append_document(tokens->ids, tokens->is_trained);
      }
    }
  }
}

void require_chat_names(const ChatFiles& files) {
  if (files.inputs.empty()) {
    throw Error(ExitCode::usage,
                "tokenize: expected at least one file of conversations, found none; use --chat");
  }
  refuse_other_formats(files.inputs);
  if (files.output.ends_with(".h5") || files.output.ends_with(".hdf5")) return;
  throw Error(ExitCode::usage, fmt::format("output '{}': expected a name that ends in .h5, the "
                                           "only kind of file that marks what is trained on; "
                                           "rename the output",
                                           files.output));
}

[[noreturn]] void fail_no_chats(const ChatFigures& figures, const ChatFiles& files) {
  throw Error(
      ExitCode::data,
      fmt::format("{}: expected conversations with something to train on, found {} without "
                  "an answer of the assistant and {} without one within --context {}; give "
                  "others, a larger --context or --train-on all",
                  files.inputs.front(), figures.without_answer, figures.too_long, files.longest));
}

}  // namespace

ChatFigures tokenize_chats(const ChatEncoder& encoder, const ChatFiles& files) {
  require_chat_names(files);
  TokenWriter writer(files.output, record_of(encoder.tokenizer(), -1));
  const ChatRows rows(encoder, files);
  ChatFigures figures;
  for (const std::string& path : without_empty_files(files.inputs)) {
    append_chats(path, files, rows, writer, figures);
  }
  if (figures.conversations == 0) fail_no_chats(figures, files);
  writer.finish();
  return figures;
}

}  // namespace hyperslab::io
