// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/generate.hpp"

#include <fmt/format.h>

#include "command.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/deck/deck.hpp"
#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::cli {
namespace {

train::SamplingOptions sampling_options(const Arguments& args, const io::Tokenizer& tokenizer,
                                        std::int64_t model_vocabulary) {
  train::SamplingOptions options;
  options.max_tokens = args.get<std::int64_t>("max-tokens");
  options.temperature = args.get<double>("temperature");
  options.top_k = args.get<std::int64_t>("top-k");
  options.top_p = args.get<double>("top-p");
  options.seed = args.get<std::uint64_t>("seed");
  options.stop_token =
      args.has("stop-token") ? args.get<std::int32_t>("stop-token") : tokenizer.end_of_text();
  const auto refuse = [](const std::string& text) {
    throw Error(ExitCode::usage, text).on_all_ranks();
  };
  if (!(options.temperature >= 0)) refuse("--temperature must be 0 (the likeliest token) or more");
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("--top-p must be above 0 and at most 1");
  if (options.top_k < 0) refuse("--top-k must be 0 (all tokens) or more");
  if (options.max_tokens < 1) refuse("--max-tokens must be 1 or more");
  if (options.stop_token < -1 || options.stop_token >= model_vocabulary) {
    refuse(fmt::format("--stop-token must be an id below {}, or -1 (none)", model_vocabulary));
  }
  return options;
}

std::vector<std::int32_t> encode_prompt(const io::Tokenizer& tokenizer, const std::string& text,
                                        std::int64_t model_vocabulary) {
  if (tokenizer.vocabulary() > model_vocabulary) {
    throw Error(ExitCode::data,
                fmt::format("the vocabulary has {} ids, the model only {}; give the "
                            "--vocab that the training text was tokenized with",
                            tokenizer.vocabulary(), model_vocabulary));
  }
  std::vector<std::int32_t> prompt = tokenizer.encode(text);
  if (prompt.empty()) {
    if (tokenizer.end_of_text() < 0) {
      throw Error(ExitCode::usage, "--prompt is empty and the vocabulary has no end-of-text id");
    }
    prompt.push_back(tokenizer.end_of_text());  // a new document begins
  }
  return prompt;
}

void generate(const Arguments& args) {
  const io::CheckpointReader reader(args.get<std::string>("checkpoint"));
  deck::Surroundings surroundings;
  surroundings.ranks = 0;
  surroundings.for_training = false;
  surroundings.has_cuda_device = cuda_device_count() > 0;
  const train::Config config =
      deck::read_deck(reader.meta().deck, reader.folder() + " (its deck)", {}, surroundings);
  const std::string vocabulary =
      args.has("vocab") ? args.get<std::string>("vocab") : config.data.vocabulary;
  if (vocabulary.empty()) {
    throw Error(ExitCode::usage, "the checkpoint's deck names no data.vocabulary; give --vocab");
  }
  const auto tokenizer = io::open_tokenizer(vocabulary);
  const train::SamplingOptions options =
      sampling_options(args, *tokenizer, config.model.vocabulary);
  const auto text = args.get<std::string>("prompt");
  const auto prompt = encode_prompt(*tokenizer, text, config.model.vocabulary);
  fmt::print("{}", text);
  io::Utf8Stream stream;
  const auto stats = train::generate(config, reader, prompt, options, [&](std::int32_t token) {
    fmt::print("{}", stream.push(tokenizer->decode(token)));
    std::fflush(stdout);
  });
  fmt::print("{}\n", stream.finish());
  fmt::print(stderr, "prompt: {} tokens, {:.1f} tokens/s; generated: {} tokens, {:.1f} tokens/s\n",
             stats.prompt_tokens, static_cast<double>(stats.prompt_tokens) / stats.prompt_seconds,
             stats.tokens, static_cast<double>(stats.tokens) / std::max(stats.seconds, 1e-9));
}

}  // namespace

ExitCode run_generate(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args(
      "usage: hyperslab generate --checkpoint DIR --prompt TEXT [options] continues TEXT");
  args.add()("checkpoint", po::value<std::string>()->required(),
             "a step's folder, or a directory of them, of which the newest is taken")(
      "prompt", po::value<std::string>()->default_value(""), "text to continue")(
      "vocab", po::value<std::string>(), "vocabulary (default: data.vocabulary of the deck)")(
      "max-tokens", po::value<std::int64_t>()->default_value(200), "tokens to generate")(
      "temperature", po::value<double>()->default_value(1.0), "0: always the likeliest token")(
      "top-k", po::value<std::int64_t>()->default_value(0), "sample among the k likeliest; 0: all")(
      "top-p", po::value<double>()->default_value(1.0),
      "sample among the likeliest tokens that hold this mass")(
      "seed", po::value<std::uint64_t>()->default_value(1), "of the sampling")(
      "stop-token", po::value<std::int32_t>(),
      "id that ends the text; -1: none (default: end of text)");
  if (!args.parse(world, arguments)) return ExitCode::ok;
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "generate runs on one rank; start it without mpirun")
        .on_all_ranks();
  }
  generate(args);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
