// SPDX-License-Identifier: Apache-2.0
#include "request_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

namespace hyperslab::serve {
namespace {

using nlohmann::json;

std::vector<std::string> parse_stops(JsonFields& fields) {
  const json* stop = fields.take("stop");
  if (stop == nullptr) return {};
  const json list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > kMostStops) {
    refuse_field("stop", fmt::format("{} texts, of which a request takes {} at most", list.size(),
                                     kMostStops));
  }
  std::vector<std::string> stops;
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      refuse_field("stop", "expected a text or a list of texts, none of them empty");
    }
    stops.push_back(text.get<std::string>());
    if (stops.back().size() > kMostStopBytes) {
      refuse_field("stop", fmt::format("a text of {} bytes, of which one takes {} at most",
                                       stops.back().size(), kMostStopBytes));
    }
  }
  return stops;
}

/// A seed of its own for a request that names none.
std::uint64_t drawn_seed() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) | device();
}

generate::SamplingOptions parse_sampling(const ServedModel& model,
                                         const std::vector<std::int32_t>& ends,
                                         JsonFields& fields) {
  constexpr double kHottest = 100;
  constexpr double kTiny = 1e-12;
  const std::int64_t V = model.vocabulary;
  generate::SamplingOptions options;
  options.temperature = fields.number("temperature", {0, kHottest}).value_or(1);
  options.top_p = fields.number("top_p", {kTiny, 1}).value_or(1);
  const std::int64_t top_k = fields.integer("top_k", {-1, INT32_MAX}).value_or(0);
  options.top_k = std::min(std::max<std::int64_t>(top_k, 0), V);  // vLLM: -1 is all, too
  options.min_p = fields.number("min_p", {0, 1}).value_or(0);
  options.repetition_penalty = fields.number("repetition_penalty", {kTiny, 1e6}).value_or(1);
  const auto seed = fields.integer("seed", {INT64_MIN, INT64_MAX});
  options.seed = seed ? static_cast<std::uint64_t>(*seed) : drawn_seed();
  if (!fields.flag("ignore_eos", false)) options.stop_tokens = ends;
  return options;
}

bool parse_stream_usage(JsonFields& fields) {
  const json* options = fields.take("stream_options");
  if (options == nullptr) return false;
  if (!options->is_object()) refuse_field("stream_options", "expected an object");
  JsonFields inside(*options);
  const bool wanted = inside.flag("include_usage", false);
  inside.finish();
  return wanted;
}

void refuse_unsupported(JsonFields& fields) {
  fields.refuse_unless("presence_penalty", 0);
  fields.refuse_unless("frequency_penalty", 0);
  fields.refuse_unless("logit_bias", json::object());
  (void)fields.take("user");  // a name for the caller's own records
}

}  // namespace

void refuse_field(const std::string& field, const std::string& text) {
  throw RequestError(400, fmt::format("{}: {}", field, text), field);
}

CompletionRequest take_shared_fields(const ServedModel& model,
                                     const std::vector<std::int32_t>& ends, JsonFields& fields) {
  CompletionRequest request;
  request.sampling = parse_sampling(model, ends, fields);
  request.stops = parse_stops(fields);
  request.stream = fields.flag("stream", false);
  request.stream_usage = parse_stream_usage(fields);
  request.n = fields.integer("n", {1, kMostChoices}).value_or(1);
  refuse_unsupported(fields);
  return request;
}

void require_bytes(const ServedModel& model, std::int64_t bytes, const std::string& field) {
  const std::int64_t most = model.context * model.token_bytes;
  if (model.token_bytes == 0 || bytes <= most) return;
  refuse_field(field,
               fmt::format("{} bytes, of which this model's context of {} tokens takes {} at "
                           "most, as its longest token has {}",
                           bytes, model.context, most, model.token_bytes));
}

void require_size(const ServedModel& model, const CompletionRequest& request,
                  const std::string& field) {
  if (std::ssize(request.prompts) * request.n > kMostChoices) {
    refuse_field("n",
                 fmt::format("{} prompts with {} choices each, of which a request takes {} at most",
                             request.prompts.size(), request.n, kMostChoices));
  }
  // The last token of a text is chosen, and never read.
  const std::int64_t tokens = request.sampling.max_tokens;
  std::int64_t all = 0;
  for (const auto& prompt : request.prompts) {
    const auto length = std::ssize(prompt);
    if (length > model.context) {
      refuse_field(field, fmt::format("{} tokens, of which this model's context takes {}", length,
                                      model.context));
    }
    if (length + tokens > model.context + 1) {
      refuse_field(field,
                   fmt::format("{} tokens and max_tokens of {}, of which this model's context "
                               "takes {} together",
                               length, tokens, model.context + 1));
    }
    all += (length + tokens) * request.n;
  }
  if (all > kMostRequestTokens / (1 + request.logprobs.value_or(0))) {
    refuse_field(
        field,
        fmt::format("{} tokens in all choices, of which a request takes {} at most with logprobs "
                    "of {}; ask for fewer at a time",
                    all, kMostRequestTokens / (1 + request.logprobs.value_or(0)),
                    request.logprobs.value_or(0)));
  }
}

}  // namespace hyperslab::serve
