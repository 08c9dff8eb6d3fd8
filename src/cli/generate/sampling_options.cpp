// SPDX-License-Identifier: Apache-2.0
#include "sampling_options.hpp"

#include <fmt/format.h>

#include <cmath>

namespace hyperslab::cli {
namespace {

/// --stop-token alone, else all ends of texts.
std::vector<std::int32_t> stop_tokens(const Arguments& args, const StoredModel& model,
                                      const std::vector<std::int32_t>& ends) {
  if (!args.has("stop-token")) return ends;
  const auto id = args.get<std::int32_t>("stop-token");
  if (id < -1 || id >= model.config.model.vocabulary) {
    refuse(fmt::format("--stop-token must be an id below {}, or -1 (none)",
                       model.config.model.vocabulary));
  }
  return id < 0 ? std::vector<std::int32_t>() : std::vector{id};
}

}  // namespace

void add_sampling_options(Arguments& args) {
  args.add()("temperature", po::value<double>()->default_value(1.0),
             "0: always the likeliest token")("top-k", po::value<std::int64_t>()->default_value(0),
                                              "sample among the k likeliest; 0: all")(
      "top-p", po::value<double>()->default_value(1.0),
      "sample among the likeliest tokens that hold this mass")(
      "min-p", po::value<double>()->default_value(0.0),
      "sample among tokens with at least this part of the likeliest's probability; 0: all")(
      "repetition-penalty", po::value<double>()->default_value(1.0),
      "weaken tokens that the text has by this factor; 1: none")(
      "stop", po::value<std::vector<std::string>>()->composing(),
      "text that ends a text, itself left out (may be repeated)")(
      "stop-token", po::value<std::int32_t>(),
      "id that alone ends a text; -1: none (default: the ids that the vocabulary and "
      "model.eos_tokens name)");
}

generate::SamplingOptions sampling_options(const Arguments& args, const StoredModel& model,
                                           const std::vector<std::int32_t>& ends) {
  generate::SamplingOptions options;
  if (args.has("max-tokens")) options.max_tokens = args.get<std::int64_t>("max-tokens");
  options.temperature = args.get<double>("temperature");
  options.top_k = args.get<std::int64_t>("top-k");
  options.top_p = args.get<double>("top-p");
  options.min_p = args.get<double>("min-p");
  options.repetition_penalty = args.get<double>("repetition-penalty");
  options.seed = args.get<std::uint64_t>("seed");
  options.stop_tokens = stop_tokens(args, model, ends);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    refuse("--temperature must be 0 (the likeliest token) or more, and finite");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("--top-p must be above 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1)) refuse("--min-p must be 0 (all tokens) to 1");
  if (!(options.repetition_penalty > 0 && options.repetition_penalty <= 1e6)) {
    refuse("--repetition-penalty must be above 0 and at most 1e6; 1 is none");
  }
  if (options.top_k < 0) refuse("--top-k must be 0 (all tokens) or more");
  if (options.max_tokens < 1) refuse("--max-tokens must be 1 or more");
  for (const std::string& stop : args.list("stop")) {
    if (stop.empty()) refuse("--stop must not be empty");
  }
  return options;
}

}  // namespace hyperslab::cli
