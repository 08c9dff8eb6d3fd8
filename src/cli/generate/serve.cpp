// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/serve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "../chat_template.hpp"
#include "../command.hpp"
#include "../stored_model.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/io/chat_tokens.hpp"
#include "hyperslab/io/text_file.hpp"

namespace hyperslab::cli {
namespace {

std::int64_t in_range(const Arguments& args, const std::string& name, std::int64_t least,
                      std::int64_t most) {
  const auto value = args.get<std::int64_t>(name);
  if (value < least || value > most) {
    refuse(fmt::format("--{} must be {} to {}", name, least, most));
  }
  return value;
}

/// Refuses a file that another user may read or write, as ssh does with keys.
void require_private(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr fs::perms kOthers = fs::perms::group_all | fs::perms::others_all;
  std::error_code error;
  const fs::perms mode = fs::status(path, error).permissions() & fs::perms::mask;
  if (error || (mode & kOthers) == fs::perms::none) return;  // read_text_file() has the error
  throw Error(ExitCode::usage,
              fmt::format("--token-file '{}': other users may read or write it (mode {:04o}), so "
                          "that its token is no secret; run chmod 600 on it",
                          path, static_cast<unsigned>(mode)));
}

/// The first line of a file.
std::string read_token(const std::string& path) {
  constexpr std::uint64_t kMost = 4096;
  require_private(path);
  std::string token = io::read_text_file(path, kMost);
  token.resize(std::min(token.size(), token.find_first_of("\r\n")));
  const auto is_plain = [](char c) { return c > ' ' && c <= '~'; };
  if (token.empty() || !std::ranges::all_of(token, is_plain)) {
    throw Error(ExitCode::usage,
                fmt::format("--token-file '{}': expected a token of printable ASCII without spaces "
                            "in the first line",
                            path));
  }
  return token;
}

serve::ServeOptions serve_options(const Arguments& args) {
  constexpr std::int64_t kMostPort = 65535;
  constexpr std::int64_t kMostQueue = 100'000;
  constexpr std::int64_t kMostConnections = 10'000;
  constexpr std::int64_t kMostMib = 1024;
  serve::ServeOptions options;
  options.host = args.get<std::string>("host");
  options.port = static_cast<std::uint16_t>(in_range(args, "port", 0, kMostPort));
  if (args.has("token-file")) options.token = read_token(args.get<std::string>("token-file"));
  options.queue = static_cast<std::size_t>(in_range(args, "queue", 1, kMostQueue));
  options.limits.connections =
      static_cast<std::size_t>(in_range(args, "connections", 1, kMostConnections));
  options.limits.body_bytes = static_cast<std::uint64_t>(in_range(args, "body-mib", 1, kMostMib))
                              << 20;
  options.limits.client_seconds = args.get<double>("client-seconds");
  if (!(options.limits.client_seconds > 0 && options.limits.client_seconds <= 86400)) {
    refuse("--client-seconds must be above 0 and at most 86400");
  }
  if (!serve::is_loopback(options.host) && options.token.empty()) {
    log::warn(
        fmt::format("--host {} lets other machines in, and there is no --token-file: whoever "
                    "reaches the port can use the model, and so can web pages that they open",
                    options.host));
  }
  return options;
}

/// Ranks that follow end when the first one does; mpirun hands its signals to all of them.
void leave_signals_to_the_leader() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_IGN);
}

/// The tokenizer that parses special tokens in texts; none, with a line that says so, if a special
/// token of the vocabulary does not allow that.
std::unique_ptr<io::Tokenizer> open_parsing(const std::string& vocabulary) {
  const std::string token = io::unparsed_special_token(vocabulary);
  if (token.empty()) return io::open_tokenizer(vocabulary, io::SpecialTokens::parsed);
  log::info(
      fmt::format("special tokens that a text names are text, and parse_special is refused: '{}' "
                  "of vocabulary '{}' is single_word",
                  printable(token), vocabulary));
  return nullptr;
}

/// The writer of conversations; none, with a line that says so, if the vocabulary names no known
/// template: then `problem` says why.
std::unique_ptr<io::ChatEncoder> chat_encoder(const Arguments& args, const StoredModel& model,
                                              std::string& problem) {
  try {
    const io::ChatTemplate form = chat_template(args, model.vocabulary, io::ChatUse::answers);
    return std::make_unique<io::ChatEncoder>(*model.tokenizer, model.vocabulary, form);
  } catch (const Error& error) {
    if (args.has("chat-template")) throw;
    problem = error.what();
    log::info(fmt::format("/v1/chat/completions is refused: {}", printable(problem)));
    return nullptr;
  }
}

std::optional<serve::FollowedRun> followed_run(const Arguments& args, const StoredModel& model) {
  if (!args.has("follow")) return {};
  return serve::FollowedRun{io::CheckpointFollower(args.get<std::string>("follow"), model.reader),
                            args.has("ema")};
}

serve::ServedModel served_model(const Arguments& args, const StoredModel& model,
                                const generate::Generator& generator,
                                const io::Tokenizer* parsing) {
  return {args.has("name") ? args.get<std::string>("name") : model.config.run.name,
          model.tokenizer.get(),
          parsing,
          generator.context(),
          generator.vocabulary(),
          model.ends,
          serve::longest_token(*model.tokenizer)};
}

generate::GeneratorSize generator_size(const Arguments& args) {
  constexpr std::int64_t kMostRows = 4096;
  return {.rows = in_range(args, "batch", 1, kMostRows),
          .cache_tokens = cache_tokens(args),
          .generation = generation_of(args),
          .draft_tokens = draft_tokens(args)};
}

void serve(comm::World& world, const Arguments& args) {
  serve::ServeOptions options;
  generate::GeneratorSize size;
  comm::agree(world, [&] {
    size = generator_size(args);
    if (world.rank() == 0) options = serve_options(args);
  });
  const StoredModel model = open_stored_model(world, args, io::SpecialTokens::text);
  const auto draft = open_draft_model(world, args, model);
  std::string no_template;
  std::unique_ptr<io::ChatEncoder> chats;
  std::optional<serve::FollowedRun> followed;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    chats = chat_encoder(args, model, no_template);
    followed = followed_run(args, model);
  });
  const comm::Watchdog watchdog(world, watch_options(world, model.config));
  generate::Generator generator(world, model.config, &model.reader, size,
                                legal_changes(model.config), draft_source(draft));
  if (!generator.leads()) {
    leave_signals_to_the_leader();
    return generator.follow();
  }
  log_cache(generator);
  log_drafts(args, generator);
  const auto parsing = open_parsing(model.vocabulary);
  serve::ServedModel served = served_model(args, model, generator, parsing.get());
  served.chats = chats.get();
  served.no_chats = "this server has no chat template: " + no_template;
  const generate::GenerateStats stats =
      serve::serve(options, served, generator, std::move(followed));
  generator.let_go();
  if (size.draft_tokens > 0) {
    log::info(fmt::format("served: {} tokens in {}", stats.tokens, describe(stats)));
  }
}

}  // namespace

Arguments serve_arguments() {
  Arguments args(
      "[mpirun -np N] hyperslab serve --checkpoint DIR [options]\n"
      "[mpirun -np N] hyperslab serve --follow RUN [options]",
      "Answers POST /v1/completions, /v1/chat/completions, /tokenize and /detokenize, and GET "
      "/v1/models, /tokenizer_info and /health over HTTP, until SIGINT, SIGTERM or SIGUSR1. N "
      "ranks "
      "share the model as parallel.tensor does, whatever layout it was trained on.");
  const serve::ServeOptions defaults;
  add_stored_model_options(args, ModelSource::checkpoint_or_run);
  add_cache_options(args);
  add_draft_options(args);
  add_chat_template_option(args, io::ChatUse::answers);
  args.add()(
      "host", po::value<std::string>()->default_value(defaults.host),
      "address to listen on; 0.0.0.0 or :: lets other machines in. Of this machine alone and "
      "without --token-file, Host and Origin must be localhost, 127.0.0.1, [::1] or this "
      "address")("port", po::value<std::int64_t>()->default_value(defaults.port),
                 "port to listen on; 0: one that is free, which the log names")(
      "token-file", po::value<std::string>(),
      "requests must bring the token in this file's first line, as Authorization: Bearer TOKEN; "
      "no other user may have a right to the file (default: none asked for)")(
      "name", po::value<std::string>(),
      "of the model, for requests (default: run.name of its deck)")(
      "batch", po::value<std::int64_t>()->default_value(8),
      "texts that run together at most; the key-value cache grows with it")(
      "queue", po::value<std::int64_t>()->default_value(static_cast<std::int64_t>(defaults.queue)),
      "requests that may wait for the model; others get 429")(
      "connections",
      po::value<std::int64_t>()->default_value(
          static_cast<std::int64_t>(defaults.limits.connections)),
      "connections at a time; others get 503")(
      "body-mib",
      po::value<std::int64_t>()->default_value(
          static_cast<std::int64_t>(defaults.limits.body_bytes >> 20)),
      "MiB that a request may have; larger ones get 413")(
      "client-seconds", po::value<double>()->default_value(defaults.limits.client_seconds),
      "seconds a client may take to send a request or take an answer, or be silent in between");
  return args;
}

ExitCode run_serve(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = serve_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  serve(world, args);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
