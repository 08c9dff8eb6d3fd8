// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/generate/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "../command.hpp"
#include "../stored_model.hpp"
#include "completions.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/generate/prompts.hpp"
#include "hyperslab/io/npy_file.hpp"
#include "hyperslab/io/text_file.hpp"
#include "prompt_file.hpp"
#include "sampling_options.hpp"

namespace hyperslab::cli {
namespace {

NamedPrompts named_prompts(const Arguments& args) {
  if (!args.has("prompt-file")) {
    return {args.has("prompt") ? args.list("prompt") : std::vector<std::string>{""}, {}};
  }
  if (args.has("prompt")) refuse("--prompt does not go with --prompt-file; leave one of them out");
  const auto path = args.get<std::string>("prompt-file");
  if (args.has("json") && args.get<std::string>("json") == path) {
    refuse("--json would replace the prompts of --prompt-file; name another file");
  }
  return read_prompt_file(path);
}

void write_logits(const std::string& path, generate::Generator& generator,
                  const generate::Prompts& prompts) {
  const auto tokens = static_cast<std::int64_t>(prompts.front().size());
  if (prompts.size() != 1 || tokens > generator.context()) {
    refuse(
        fmt::format("--logits takes one prompt of at most {} tokens (the context), found {} "
                    "prompts, the first of {} tokens",
                    generator.context(), prompts.size(), tokens));
  }
  io::NpyFile file(path, tokens, generator.vocabulary());
  generator.prompt_logits(
      prompts, [&](std::size_t, std::size_t, std::span<const float> row) { file.append(row); });
  file.finish();
}

void warn_of_long_prompts(const generate::Prompts& prompts, std::int64_t context) {
  const auto is_long = [&](const auto& prompt) { return std::ssize(prompt) > context; };
  const auto first = std::ranges::find_if(prompts, is_long);
  if (first == prompts.end()) return;
  log::warn(
      fmt::format("{} of {} prompts have more tokens than the context of {}, of which the "
                  "model sees the last; the first is prompt {} with {}",
                  std::ranges::count_if(prompts, is_long), prompts.size(), context,
                  first - prompts.begin() + 1, first->size()));
}

/// Likeliest tokens to report with every token; absent: none were asked for.
std::optional<std::int64_t> wanted_logprobs(const Arguments& args) {
  constexpr std::int64_t kMost = 100;
  if (!args.has("logprobs")) return {};
  const auto count = args.get<std::int64_t>("logprobs");
  if (count < 0 || count > kMost) refuse(fmt::format("--logprobs must be 0 to {}", kMost));
  if (!args.has("json")) refuse("--logprobs are written to the file of --json; name one");
  return count;
}

/// 0 if they took no time of their own: a text's first token comes with its prompt.
double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;

/// Writes all as one JSON object; into a .jsonl the completions alone, one a line.
void write_json(const std::string& path, const nlohmann::ordered_json& completions,
                const generate::GenerateStats& stats) {
  if (path.ends_with(".jsonl")) {
    std::string lines;
    for (const auto& completion : completions) {
      lines += completion.dump(-1, ' ', false, kReplace) + '\n';
    }
    io::write_text_file(path, lines);
    return;
  }
  nlohmann::ordered_json out;
  out["completions"] = completions;
  out["prompt_tokens"] = stats.prompt_tokens;
  out["prompt_seconds"] = stats.prompt_seconds;
  out["prompt_tokens_per_second"] = rate(stats.prompt_tokens, stats.prompt_seconds);
  out["tokens"] = stats.tokens;
  out["seconds"] = stats.seconds;
  out["tokens_per_second"] = rate(stats.tokens, stats.seconds);
  out["passes"] = stats.passes;
  out["drafted"] = stats.drafts.drafted;
  out["accepted"] = stats.drafts.accepted;
  io::write_text_file(path, out.dump(2, ' ', false, kReplace) + '\n');
}

/// The request, which the first rank alone has.
struct Request {
  generate::SamplingOptions options;
  std::optional<std::int64_t> logprobs;
  NamedPrompts named;
  generate::Prompts prompts;
};

Request read_request(const Arguments& args, const StoredModel& model) {
  Request request;
  request.options = sampling_options(args, model, model.ends.ids);
  if (args.get<std::int64_t>("batch") < 1) refuse("--batch must be 1 or more");
  request.logprobs = wanted_logprobs(args);
  request.named = named_prompts(args);
  request.prompts = generate::encode_prompts(*model.tokenizer, model.ends, request.named.texts,
                                             !args.has("no-special-tokens"));
  return request;
}

void generate(comm::World& world, const Arguments& args) {
  const StoredModel model = open_stored_model(world, args, special_tokens(args));
  Request request;
  comm::agree(world, [&] {
    if (world.rank() == 0) request = read_request(args, model);
  });
  require_places(world, args, {"json", "logits"});
  generate::GeneratorSize size;
  comm::agree(world, [&] {
    size.cache_tokens = cache_tokens(args);
    size.draft_tokens = draft_tokens(args);
  });
  size.generation = generation_of(args);
  size.rows =
      world.max(generate::Generator::rows_for(request.prompts, args.get<std::int64_t>("batch")));
  const auto draft = open_draft_model(world, args, model);
  const comm::Watchdog watchdog(world, watch_options(world, model.config));
  generate::Generator generator(world, model.config, &model.reader, size,
                                legal_changes(model.config), draft_source(draft));
  if (!generator.leads()) return generator.follow();
  if (args.has("cache-tokens")) log_cache(generator);
  log_drafts(args, generator);
  warn_of_long_prompts(request.prompts, generator.context());
  if (args.has("logits")) {
    write_logits(args.get<std::string>("logits"), generator, request.prompts);
  }
  Completions completions(*model.tokenizer, request.named.texts, args.list("stop"),
                          request.options.max_tokens, request.logprobs);
  const auto stats = generator.generate(request.prompts, request.options, completions);
  generator.let_go();
  if (args.has("json")) {
    write_json(args.get<std::string>("json"),
               completions.to_json(request.prompts, request.named.ids), stats);
  }
  fmt::print(
      stderr, "prompt: {} tokens, {:.1f} tokens/s; generated: {} tokens, {:.1f} tokens/s{}\n",
      stats.prompt_tokens, rate(stats.prompt_tokens, stats.prompt_seconds), stats.tokens,
      rate(stats.tokens, stats.seconds), size.draft_tokens > 0 ? "; " + describe(stats) : "");
}

void add_generate_options(Arguments& args) {
  add_stored_model_options(args);
  add_cache_options(args);
  add_parse_special_option(args);
  args.add()("prompt", po::value<std::vector<std::string>>()->composing(),
             "text to continue (may be repeated; default: the beginning of a document)")(
      "prompt-file", po::value<std::string>(),
      "file of prompts: separated by blank lines if it has any, else one a line; of a .jsonl an "
      "object with \"prompt\" a line, and an \"id\" if you like")(
      "no-special-tokens",
      "leave out the special tokens that the vocabulary puts before each text (post_processor of "
      "tokenizer.json, or add_bos_token of tokenizer_config.json); what it puts after a text is "
      "never added to a prompt, as the text goes on")(
      "max-tokens", po::value<std::int64_t>()->default_value(200), "tokens to generate")(
      "seed", po::value<std::uint64_t>()->default_value(1),
      "of the sampling; prompt i, from 0, draws from the stream of seed + i");
  add_sampling_options(args);
  args.add()("batch", po::value<std::int64_t>()->default_value(8),
             "texts that run together at most; one that ends makes room for the next")(
      "logits", po::value<std::string>(),
      "also write the prompt's logits (T, V) to this .npy, f32; one prompt")(
      "logprobs", po::value<std::int64_t>(),
      "also write to the file of --json the log-probability of every token, and the n likeliest "
      "tokens in its place with theirs: at temperature 1, before all cuts; 0: of the tokens alone")(
      "json", po::value<std::string>(),
      "also write texts, ids and rates to this file; to a .jsonl the completions alone, one a "
      "line, "
      "with the id of their prompt");
}

}  // namespace

Arguments generate_arguments() {
  Arguments args(
      "[mpirun -np N] hyperslab generate --checkpoint DIR --prompt TEXT\n"
      "                          [options]",
      "Continues TEXT. N ranks share the model as parallel.tensor does, whatever layout it was "
      "trained on. The model sees at most model.context tokens: of a longer prompt the last ones, "
      "and whenever the context is full, it goes on from the last half of it.");
  add_generate_options(args);
  add_draft_options(args);
  return args;
}

ExitCode run_generate(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = generate_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  generate(world, args);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
