// SPDX-License-Identifier: Apache-2.0
#include "tokenize_chat.hpp"

#include <fmt/format.h>

#include "../chat_template.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/io/chat_tokens.hpp"

namespace hyperslab::cli {
namespace {

io::TrainOn train_on(const Arguments& args) {
  if (!args.has("train-on")) return io::TrainOn::assistant;
  const auto name = args.get<std::string>("train-on");
  if (name == "last") return io::TrainOn::last;
  if (name == "assistant") return io::TrainOn::assistant;
  if (name == "all") return io::TrainOn::all;
  throw Error(ExitCode::usage,
              fmt::format("--train-on '{}': expected last, assistant or all, found another word; "
                          "correct it",
                          name));
}

std::int64_t longest(const Arguments& args) {
  if (!args.has("context")) return 0;
  const auto tokens = args.get<std::int64_t>("context");
  if (tokens > 0) return tokens;
  throw Error(ExitCode::usage, fmt::format("--context {}: expected a number of tokens of at least "
                                           "1, found less; give model.context of the deck",
                                           tokens));
}

void warn_of_left_out(const io::ChatFigures& figures, std::int64_t longest) {
  if (figures.without_answer > 0) {
    log::warn(fmt::format("conversations left out without an answer of the assistant: {}",
                          figures.without_answer));
  }
  if (figures.too_long > 0) {
    log::warn(
        fmt::format("conversations left out without an answer that ends within {} tokens "
                    "(--context): {}",
                    longest, figures.too_long));
  }
  if (figures.cut > 0) {
    log::warn(
        fmt::format("conversations cut after their last answer that ends within {} tokens "
                    "(--context): {}, with {} messages left out",
                    longest, figures.cut, figures.messages_left_out));
  }
}

}  // namespace

void add_chat_options(Arguments& args) {
  args.add()("chat", po::value<std::vector<std::string>>()->multitoken(),
             "files of JSON lines, of which each is a conversation (`messages`); - is standard "
             "input; the output is an .h5 with documents and a mask of what is trained on");
  add_chat_template_option(args, io::ChatUse::rows);
  args.add()(
      "train-on", po::value<std::string>(),
      "tokens that count as targets: the words of the assistant with the token that ends them "
      "(assistant, the default), those of its last answer (last), or all")(
      "context", po::value<std::int64_t>(),
      "tokens that a conversation may have: longer ones end with the last answer that fits "
      "(default: any number)")(
      "pairs",
      "each row is a chosen and a rejected answer (`chosen`, `rejected`, and perhaps `prompt`, "
      "lists "
      "of messages), for train.loss: preference; of together at most --context tokens");
}

void refuse_chat_options(const Arguments& args, const char* use) {
  for (const char* name : {"chat-template", "train-on", "context", "pairs"}) {
    if (!args.has(name)) continue;
    throw Error(ExitCode::usage,
                fmt::format("--{} does not go with {}; leave one of them out", name, use));
  }
}

void tokenize_chat(const Arguments& args, const std::string& vocabulary,
                   const std::string& output) {
  const auto tokenizer = io::open_tokenizer(vocabulary);
  const io::ChatTemplate form = chat_template(args, vocabulary, io::ChatUse::rows);
  if (args.has("pairs") && form.is_rendered()) {
    throw Error(
        ExitCode::usage,
        "--pairs does not go with --chat-template rendered: rendered rows are conversations");
  }
  const io::ChatEncoder encoder(*tokenizer, vocabulary, form);
  const io::ChatFiles files = {.inputs = args.list("chat"),
                               .output = output,
                               .train_on = train_on(args),
                               .longest = longest(args),
                               .pairs = args.has("pairs"),
                               .skip_broken = args.has("skip-broken-lines")};
  const double start = now_seconds();
  const io::ChatFigures figures = io::tokenize_chats(encoder, files);
  warn_of_left_out(figures, files.longest);
  const std::string written = form.is_rendered() ? "as they were rendered"
                                                 : fmt::format("of {} messages as {} writes them",
                                                               figures.messages, form.name());
  fmt::print("{}: {} {} {}, {} tokens of a vocabulary of {}, {:.1f} % trained, in {:.2f} s\n",
             output, figures.conversations, args.has("pairs") ? "pairs" : "conversations", written,
             figures.tokens, tokenizer->vocabulary(),
             100 * static_cast<double>(figures.trained) / static_cast<double>(figures.tokens),
             now_seconds() - start);
}

}  // namespace hyperslab::cli
