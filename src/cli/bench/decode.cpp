// SPDX-License-Identifier: Apache-2.0
#include "decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "../storage_json.hpp"
#include "../stored_model.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/io/text_file.hpp"
#include "print.hpp"

namespace hyperslab::cli {
namespace {

using nlohmann::ordered_json;

/// Keeps the texts.
class Kept final : public generate::TokenListener {
 public:
  explicit Kept(std::size_t texts) : of(texts) {}
  bool token(std::size_t prompt, const generate::NextToken& next) override {
    of[prompt].push_back(next.id);
    return true;
  }
  void end(std::size_t /*prompt*/) override {}
  [[nodiscard]] bool wants_logits() const override { return false; }

  generate::Prompts of;
};

void require_samples(const Arguments& args) {
  const auto temperature = args.get<double>("temperature");
  const auto top_p = args.get<double>("top-p");
  if (!(temperature >= 0) || !(top_p > 0 && top_p <= 1)) {
    throw Error(ExitCode::usage, "--temperature must be 0 or more, --top-p above 0 and at most 1")
        .on_all_ranks();
  }
  if (temperature == 0 && top_p < 1) {
    throw Error(ExitCode::usage,
                "--top-p draws tokens, and without --temperature the likeliest are taken; give "
                "--temperature too")
        .on_all_ranks();
  }
}

void require_decodes(const comm::World& world, const Arguments& args, const train::Config& config) {
  if (args.get<int>("rows") < 1 || args.get<int>("steps") < 2 || args.get<int>("prompt") < 1) {
    throw Error(ExitCode::usage,
                "--mode decode takes --rows and --prompt of 1 or more and --steps of 2 or more")
        .on_all_ranks();
  }
  if (args.get<int>("prompt") > config.model.context - 2) {
    throw Error(ExitCode::usage,
                fmt::format("prompts of {} tokens and 2 more do not fit into model.context, {}",
                            args.get<int>("prompt"), config.model.context))
        .on_all_ranks();
  }
  const mesh::ParallelConfig& parallel = config.parallel;
  if (parallel.tensor != world.size()) {
    throw Error(ExitCode::usage,
                fmt::format("--mode decode runs on one tensor group, not with data {}, pipeline "
                            "{}; set parallel.tensor to the number of ranks, {}, and these to 1",
                            parallel.data, parallel.pipeline, world.size()))
        .on_all_ranks();
  }
  require_samples(args);
  if (config.model.is_of_images()) {
    throw Error(ExitCode::usage,
                "--mode decode is for text: a vision transformer generates nothing")
        .on_all_ranks();
  }
}

/// Texts whose prompts have one length, drawn from the whole vocabulary.
generate::Prompts drawn_prompts(const train::Config& config, std::size_t rows, std::size_t length) {
  generate::Prompts prompts(rows, std::vector<std::int32_t>(length));
  std::uint64_t index = 0;
  for (auto& prompt : prompts) {
    for (std::int32_t& token : prompt) {
      const PhiloxCounter words = philox(philox_counter(index++, 0), config.run.seed);
      token = static_cast<std::int32_t>(words.x[0] %
                                        static_cast<std::uint32_t>(config.model.vocabulary));
    }
  }
  return prompts;
}

struct Decoded {
  generate::Prompts texts;
  generate::GenerateStats stats;
  train::Footprint footprint;
  /// A text's first token comes with its prompt.
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(stats.tokens - std::ssize(texts)) / stats.seconds;
  }
};

/// Continues texts of equal lengths, at most up to the context. Absent: this rank does not lead.
std::optional<Decoded> decode(comm::World& world, const Arguments& args,
                              const train::Config& config, Dim draft_tokens) {
  const int rows = args.get<int>("rows");
  generate::Generator generator(
      world, config, nullptr, {.rows = rows, .draft_tokens = draft_tokens}, legal_changes(config));
  if (!generator.leads()) {
    generator.follow();
    return {};
  }
  const int prompt_tokens = args.get<int>("prompt");
  const generate::Prompts prompts = drawn_prompts(config, static_cast<std::size_t>(rows),
                                                  static_cast<std::size_t>(prompt_tokens));
  generate::SamplingOptions options;
  options.temperature = args.get<double>("temperature");
  options.top_p = args.get<double>("top-p");
  const std::int64_t most = config.model.context - prompt_tokens;
  const std::int64_t steps = std::min<std::int64_t>(args.get<int>("steps"), most);
  // The second token captures a graph; drafts of all lengths come in a text of the same length.
  options.max_tokens = draft_tokens > 0 ? steps : std::max(2, args.get<int>("warmup"));
  Kept warm_up(prompts.size());
  (void)generator.generate(prompts, options, warm_up);
  options.max_tokens = steps;
  Kept kept(prompts.size());
  const generate::GenerateStats stats = generator.generate(prompts, options, kept);
  generator.let_go();
  return Decoded{std::move(kept.of), stats, generator.footprint()};
}

void print_decoded(const Arguments& args, const Decoded& plain) {
  const int rows = args.get<int>("rows");
  const double rate = plain.tokens_per_second();
  fmt::print("decode: {} texts of {} tokens, {:.1f} tokens/s, {:.3f} ms a token\n", rows,
             plain.texts.front().size(), rate, 1e3 * rows / rate);
  if (args.get<int>("prompt") > 1) {
    fmt::print("prompts: {} tokens each, {:.1f} tokens/s\n", args.get<int>("prompt"),
               static_cast<double>(plain.stats.prompt_tokens) / plain.stats.prompt_seconds);
  }
}

/// The figures of drafts, against the same texts without any.
ordered_json compare(const Decoded& plain, const Decoded& drafted, int draft) {
  std::int64_t equal = 0;
  for (std::size_t i = 0; i < plain.texts.size(); ++i) {
    equal += plain.texts[i] == drafted.texts[i] ? 1 : 0;
  }
  const double rate = drafted.tokens_per_second();
  const double ratio = rate / plain.tokens_per_second();
  fmt::print("drafts of {}: {:.1f} tokens/s, {:.2f} times that; {}; {} of {} texts are equal\n",
             draft, rate, ratio, describe(drafted.stats), equal, plain.texts.size());
  return {{"tokens", draft},
          {"tokens_per_second", rate},
          {"ratio", ratio},
          {"passes", drafted.stats.passes},
          {"drafted", drafted.stats.drafts.drafted},
          {"accepted", drafted.stats.drafts.accepted},
          {"equal_texts", equal}};
}

ordered_json to_json(const Arguments& args, const train::Config& config, const Decoded& plain) {
  const int rows = args.get<int>("rows");
  const double rate = plain.tokens_per_second();
  ordered_json out = head_of(args, setup_of(config));
  out["rows"] = rows;
  out["temperature"] = args.get<double>("temperature");
  out["top_p"] = args.get<double>("top-p");
  out["prompt_tokens"] = args.get<int>("prompt");
  out["prompt_tokens_per_second"] =
      static_cast<double>(plain.stats.prompt_tokens) / plain.stats.prompt_seconds;
  out["tokens"] = plain.stats.tokens;
  out["seconds"] = plain.stats.seconds;
  out["tokens_per_second"] = rate;
  out["token_seconds"] = rows / rate;
  out.update(storage_json(config, plain.footprint));
  return out;
}

}  // namespace

int draft_of_bench(const Arguments& args) {
  const int draft = args.get<int>("draft");
  if (draft >= 0 && draft <= generate::kMostDraftTokens) return draft;
  throw Error(ExitCode::usage, fmt::format("--draft must be 0 to {}", generate::kMostDraftTokens))
      .on_all_ranks();
}

ExitCode run_bench_of_decoding(comm::World& world, const Arguments& args,
                               const train::Config& config) {
  require_decodes(world, args, config);
  const int draft = draft_of_bench(args);
  const comm::Watchdog watchdog(world, watch_options(world, config));
  const std::optional<Decoded> plain = decode(world, args, config, 0);
  if (plain) print_decoded(args, *plain);
  const std::optional<Decoded> drafted =
      draft > 0 ? decode(world, args, config, draft) : std::optional<Decoded>();
  if (!plain) return ExitCode::ok;
  ordered_json out = to_json(args, config, *plain);
  if (drafted) out["drafts"] = compare(*plain, *drafted, draft);
  if (args.has("json")) {
    io::write_text_file(args.get<std::string>("json"), out.dump(2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
