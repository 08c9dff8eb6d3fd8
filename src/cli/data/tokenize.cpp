// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "../command.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/io/tokenizer.hpp"
#include "tokenize_chat.hpp"

namespace hyperslab::cli {
namespace {

void require_option(const Arguments& args, const std::string& name) {
  if (args.has(name)) return;
  throw Error(ExitCode::usage,
              fmt::format("the option '--{}' is required but missing; see hyperslab "
                          "tokenize --help",
                          name));
}

std::string required(const Arguments& args, const std::string& name) {
  require_option(args, name);
  return args.get<std::string>(name);
}

/// Options of the other use are a mistake, not to be passed over.
void refuse_options(const Arguments& args, std::initializer_list<const char*> names,
                    const char* use) {
  for (const char* name : names) {
    if (!args.has(name)) continue;
    throw Error(ExitCode::usage,
                fmt::format("--{} does not go with {}; leave one of them out", name, use));
  }
}

/// The options of `tokenize --chat`, which others do not go with.
void chat(const Arguments& args) {
  refuse_options(
      args,
      {"input", "decode", "train-vocab", "special", "output-vocab", "document-separator", "jsonl",
       "text-key", "end-of-text", "no-end-of-text", "no-special-tokens", "parse-special"},
      "--chat");
  tokenize_chat(args, required(args, "vocab"), required(args, "output"));
}

/// The options for reading inputs of JSON lines.
io::JsonLines json_lines(const Arguments& args) {
  io::JsonLines json;
  json.all = args.has("jsonl");
  json.skip_broken = args.has("skip-broken-lines");
  const auto inputs = args.list("input");
  const auto is_json = [&](const std::string& path) { return io::is_json_lines(path, json); };
  if (std::ranges::none_of(inputs, is_json)) {
    refuse_options(args, {"text-key", "skip-broken-lines"},
                   "text files (JSON lines are those named .jsonl, or all with --jsonl)");
  }
  if (std::ranges::all_of(inputs, is_json)) {
    refuse_options(args, {"document-separator"}, "JSON lines, of which each is a document");
  }
  if (args.has("text-key")) json.text_key = args.get<std::string>("text-key");
  return json;
}

void train_vocabulary(const Arguments& args) {
  refuse_options(args,
                 {"vocab", "output", "document-separator", "no-special-tokens", "parse-special",
                  "end-of-text", "no-end-of-text"},
                 "--train-vocab");
  io::VocabularyTraining training;
  training.size = args.get<std::int64_t>("train-vocab");
  training.inputs = args.list("input");
  training.json = json_lines(args);
  if (args.has("special")) training.specials = args.list("special");
  training.output = required(args, "output-vocab");
  const double start = now_seconds();
  const std::int64_t ids = io::train_vocabulary(training);
  fmt::print("{}: a vocabulary of {} in {:.2f} s\n", training.output, ids, now_seconds() - start);
  if (ids == training.size) return;
  log::warn(
      fmt::format("the vocabulary has {} ids, not the {} of --train-vocab: the text has no more "
                  "pairs to merge; set model.vocabulary to {} or more, or give more text",
                  ids, training.size, ids));
}

std::string unicode_help(const std::string& text) {
  return text + std::string(io::unicode_version());
}

io::DocumentSeparator separator(const Arguments& args) {
  if (!args.has("document-separator")) return {};
  return io::parse_document_separator(args.get<std::string>("document-separator"));
}

void decode(const Arguments& args) {
  const auto vocab = required(args, "vocab");
  refuse_options(args,
                 {"special", "output-vocab", "train-vocab", "no-special-tokens", "parse-special",
                  "jsonl", "text-key", "skip-broken-lines", "end-of-text", "no-end-of-text"},
                 "--decode");
  const auto tokenizer = io::open_tokenizer(vocab);
  const auto output = args.has("output") ? args.get<std::string>("output") : std::string();
  const std::int64_t tokens =
      io::decode_files(*tokenizer, args.list("input"), output, separator(args));
  if (!output.empty()) fmt::print("{}: the text of {} tokens\n", output, tokens);
}

/// The id after each document as the options name it; absent: the vocabulary's.
std::optional<std::int32_t> document_end(const Arguments& args, const io::Tokenizer& tokenizer) {
  if (args.has("no-end-of-text")) {
    refuse_options(args, {"end-of-text"}, "--no-end-of-text");
    return -1;
  }
  if (!args.has("end-of-text")) return {};
  return io::find_token(tokenizer, args.get<std::string>("vocab"),
                        args.get<std::string>("end-of-text"));
}

void tokenize(const Arguments& args) {
  const auto vocab = required(args, "vocab");
  refuse_options(args, {"special", "output-vocab"}, "--vocab");
  const auto output = required(args, "output");
  const auto tokenizer = io::open_tokenizer(vocab, special_tokens(args));
  const auto end = document_end(args, *tokenizer);
  const double start = now_seconds();
  const std::int64_t tokens =
      io::tokenize_files(*tokenizer, args.list("input"), output, separator(args),
                         !args.has("no-special-tokens"), json_lines(args), end);
  fmt::print("{}: {} tokens of a vocabulary of {}, whose end of text is {}, in {:.2f} s\n", output,
             tokens, tokenizer->vocabulary(), end.value_or(tokenizer->end_of_text()),
             now_seconds() - start);
}

void add_json_options(Arguments& args) {
  args.add()("jsonl", "every input holds JSON lines, whatever its name")(
      "text-key", po::value<std::string>(),
      "key of the text in a line of JSON, in its outermost object (default: text)")(
      "skip-broken-lines",
      "leave out lines of JSON that have no such text or conversation, and say how many (default: "
      "an error)");
}

void add_training_options(Arguments& args) {
  args.add()("train-vocab", po::value<std::int64_t>(),
             "train a byte-level BPE of so many ids: 256 bytes, merges, special tokens")(
      "special", po::value<std::vector<std::string>>()->multitoken()->composing(),
      "special tokens: split the text, get the last ids (default: <|endoftext|>)")(
      "output-vocab", po::value<std::string>(),
      "folder for the trained vocab.json, merges.txt and tokenizer.json");
}

}  // namespace

Arguments tokenize_arguments() {
  Arguments args(
      "hyperslab tokenize --vocab DIR|bytes --input FILE... --output FILE\n"
      "hyperslab tokenize --chat FILE... --vocab DIR|bytes --output FILE.h5\n"
      "hyperslab tokenize --decode --vocab DIR|bytes --input FILE...\n"
      "                   [--output FILE]\n"
      "hyperslab tokenize --train-vocab SIZE --input FILE... [--special TEXT...]\n"
      "                   --output-vocab DIR",
      "Turns text files or conversations into a file of tokens, a file of tokens into text, or "
      "learns a vocabulary from text files.");
  args.add()(
      "vocab", po::value<std::string>(),
      unicode_help("vocabulary; `bytes`: 256 bytes and an end-of-text id; else a tokenizer.json, "
                   "or a folder with one or with vocab.json and merges.txt; letters and "
                   "digits of split patterns are those of Unicode ")
          .c_str())(
      "input", po::value<std::vector<std::string>>()->multitoken(),
      "text files, each of which ends a document, and .jsonl files, of which each line is "
      "a document; - is standard input; with --decode token files")(
      "output", po::value<std::string>(),
      "token file: .bin, .npy or .h5; with --decode a text file (default: standard output)")(
      "document-separator", po::value<std::string>(),
      "what else ends a document: a text with \\n, \\r, \\t, \\\\, \\xHH, or blank-lines "
      "(default: a line <|endoftext|>)")(
      "end-of-text", po::value<std::string>(),
      "token that follows each document (default: the one that the vocabulary's files name)")(
      "no-end-of-text", "let documents follow each other without a token between them")(
      "no-special-tokens",
      "leave out the special tokens that the vocabulary puts around each text (post_processor of "
      "tokenizer.json, or add_bos_token and add_eos_token of tokenizer_config.json); the "
      "end-of-text "
      "id stays")("decode", "token files back to text; what a normalizer made of it stays");
  add_json_options(args);
  add_training_options(args);
  add_parse_special_option(args);
  add_chat_options(args);
  return args;
}

ExitCode run_tokenize(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = tokenize_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "tokenize runs on one rank; start it without mpirun")
        .on_all_ranks();
  }
  if (args.has("chat")) {
    chat(args);
    return ExitCode::ok;
  }
  refuse_chat_options(args, "--input");
  require_option(args, "input");
  if (args.has("decode")) {
    decode(args);
  } else if (args.has("train-vocab")) {
    train_vocabulary(args);
  } else {
    tokenize(args);
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
