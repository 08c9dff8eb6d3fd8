// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"
#include "json_fields.hpp"

namespace hyperslab::serve {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(const std::string& field, const std::string& text) {
  throw RequestError(400, fmt::format("{}: {}", field, text), field);
}

/// An empty prompt begins a document, as it does in `hyperslab generate`.
std::vector<std::int32_t> begun(const ServedModel& model, std::vector<std::int32_t> ids) {
  if (!ids.empty()) return ids;
  const std::int32_t end = model.ends.separator;
  if (end < 0) {
    refuse("prompt", "it is empty, and the vocabulary has no end-of-text token to begin with");
  }
  return {end};
}

/// Before the text is encoded, which may take seconds.
void check_bytes(const ServedModel& model, std::string_view text) {
  const std::int64_t most = model.context * model.token_bytes;
  if (model.token_bytes == 0 || std::ssize(text) <= most) return;
  refuse("prompt", fmt::format("{} bytes, of which this model's context of {} tokens takes {} at "
                               "most, as its longest token has {}",
                               text.size(), model.context, most, model.token_bytes));
}

generate::Prompts parse_prompts(const ServedModel& model, const json& prompt,
                                const TextRules& rules) {
  const auto of_text = [&](const json& text) {
    const auto& bytes = text.get_ref<const std::string&>();
    check_bytes(model, bytes);
    return begun(model, encode_text(model, bytes, rules));
  };
  const auto is_text = [](const json& item) { return item.is_string(); };
  const auto is_list = [](const json& item) { return item.is_array(); };
  if (prompt.is_string()) return {of_text(prompt)};
  if (!prompt.is_array() || prompt.empty()) {
    refuse("prompt", "expected a text, texts, ids or lists of ids");
  }
  if (std::ssize(prompt) > kMostChoices && (is_text(prompt[0]) || is_list(prompt[0]))) {
    refuse("prompt", fmt::format("{} prompts, of which a request takes {} at most", prompt.size(),
                                 kMostChoices));
  }
  generate::Prompts prompts;
  if (std::ranges::all_of(prompt, is_text)) {
    for (const json& text : prompt) prompts.push_back(of_text(text));
  } else if (std::ranges::all_of(prompt, is_list)) {
    for (const json& ids : prompt) prompts.push_back(begun(model, parse_ids(model, ids, "prompt")));
  } else {
    prompts.push_back(parse_ids(model, prompt, "prompt"));
  }
  return prompts;
}

std::vector<std::string> parse_stops(JsonFields& fields) {
  const json* stop = fields.take("stop");
  if (stop == nullptr) return {};
  const json list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > kMostStops) {
    refuse("stop",
           fmt::format("{} texts, of which a request takes {} at most", list.size(), kMostStops));
  }
  std::vector<std::string> stops;
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      refuse("stop", "expected a text or a list of texts, none of them empty");
    }
    stops.push_back(text.get<std::string>());
    if (stops.back().size() > kMostStopBytes) {
      refuse("stop", fmt::format("a text of {} bytes, of which one takes {} at most",
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

generate::SamplingOptions parse_sampling(const ServedModel& model, JsonFields& fields) {
  constexpr double kHottest = 100;
  constexpr double kTiny = 1e-12;
  const std::int64_t V = model.vocabulary;
  generate::SamplingOptions options;
  options.max_tokens = fields.integer("max_tokens", {0, model.context}).value_or(16);
  options.temperature = fields.number("temperature", {0, kHottest}).value_or(1);
  options.top_p = fields.number("top_p", {kTiny, 1}).value_or(1);
  const std::int64_t top_k = fields.integer("top_k", {-1, INT32_MAX}).value_or(0);
  options.top_k = std::min(std::max<std::int64_t>(top_k, 0), V);  // vLLM: -1 is all, too
  options.min_p = fields.number("min_p", {0, 1}).value_or(0);
  options.repetition_penalty = fields.number("repetition_penalty", {kTiny, 1e6}).value_or(1);
  const auto seed = fields.integer("seed", {INT64_MIN, INT64_MAX});
  options.seed = seed ? static_cast<std::uint64_t>(*seed) : drawn_seed();
  if (!fields.flag("ignore_eos", false)) options.stop_tokens = model.ends.ids;
  return options;
}

bool parse_stream_usage(JsonFields& fields) {
  const json* options = fields.take("stream_options");
  if (options == nullptr) return false;
  if (!options->is_object()) refuse("stream_options", "expected an object");
  JsonFields inside(*options);
  const bool wanted = inside.flag("include_usage", false);
  inside.finish();
  return wanted;
}

void refuse_unsupported(JsonFields& fields) {
  fields.refuse_unless("suffix", "");
  fields.refuse_unless("presence_penalty", 0);
  fields.refuse_unless("frequency_penalty", 0);
  fields.refuse_unless("logit_bias", json::object());
  (void)fields.take("user");  // a name for the caller's own records
}

void check_size(const ServedModel& model, const CompletionRequest& request) {
  if (std::ssize(request.prompts) * request.n > kMostChoices) {
    refuse("n", fmt::format("{} prompts with {} choices each, of which a request takes {} at most",
                            request.prompts.size(), request.n, kMostChoices));
  }
  // The last token of a text is chosen, and never read.
  const std::int64_t tokens = request.sampling.max_tokens;
  std::int64_t all = 0;
  for (const auto& prompt : request.prompts) {
    const auto length = std::ssize(prompt);
    if (length > model.context) {
      refuse("prompt", fmt::format("{} tokens, of which this model's context takes {}", length,
                                   model.context));
    }
    if (length + tokens > model.context + 1) {
      refuse("prompt", fmt::format("{} tokens and max_tokens of {}, of which this model's context "
                                   "takes {} together",
                                   length, tokens, model.context + 1));
    }
    all += (length + tokens) * request.n;
  }
  if (all > kMostRequestTokens / (1 + request.logprobs.value_or(0))) {
    refuse(
        "prompt",
        fmt::format("{} tokens in all choices, of which a request takes {} at most with logprobs "
                    "of {}; ask for fewer prompts at a time",
                    all, kMostRequestTokens / (1 + request.logprobs.value_or(0)),
                    request.logprobs.value_or(0)));
  }
}

}  // namespace

json parse_object(std::string_view body) {
  if (io::is_too_deep(body)) {
    throw RequestError(
        400, fmt::format("the body's JSON is nested more than {} deep", io::kDeepestJson));
  }
  if (const auto key = io::repeated_key(body)) {
    throw RequestError(400, fmt::format("the key '{:.64}' stands twice in the body's JSON", *key));
  }
  json object = json::parse(body, nullptr, false);
  if (object.is_discarded()) throw RequestError(400, "the body is no valid JSON");
  if (!object.is_object()) throw RequestError(400, "the body's JSON is no object");
  return object;
}

std::string end_of_text_name(const io::Tokenizer& tokenizer) {
  const std::int32_t end = tokenizer.end_of_text();
  if (end < 0) return {};
  const std::string name = tokenizer.decode(end);
  return name.empty() ? "<|endoftext|>" : name;
}

std::int64_t longest_token(const io::Tokenizer& tokenizer) {
  std::size_t longest = std::max<std::size_t>(end_of_text_name(tokenizer).size(), 1);
  for (std::int64_t id = 0; id < tokenizer.vocabulary(); ++id) {
    longest = std::max(longest, tokenizer.decode(static_cast<std::int32_t>(id)).size());
  }
  return static_cast<std::int64_t>(longest);
}

std::vector<std::int32_t> encode_text(const ServedModel& model, std::string_view text,
                                      const TextRules& rules) {
  const io::Tokenizer& tokenizer = rules.parse_special ? *model.parsing : *model.tokenizer;
  std::vector<std::int32_t> ids;
  if (rules.add_special) ids = tokenizer.text_template().before;
  const std::vector<std::int32_t> found = tokenizer.encode(text);
  ids.insert(ids.end(), found.begin(), found.end());
  return ids;
}

std::vector<std::int32_t> parse_ids(const ServedModel& model, const json& ids,
                                    const std::string& field) {
  if (!ids.is_array()) refuse(field, "expected a list of ids");
  std::vector<std::int32_t> parsed;
  parsed.reserve(ids.size());
  for (const json& id : ids) {
    const bool fits = id.is_number_unsigned() &&
                      id.get<std::uint64_t>() < static_cast<std::uint64_t>(model.vocabulary);
    if (!fits) refuse(field, fmt::format("expected ids of 0 to {}", model.vocabulary - 1));
    parsed.push_back(id.get<std::int32_t>());
  }
  return parsed;
}

CompletionRequest parse_completion_request(const ServedModel& model, std::string_view body) {
  const json object = parse_object(body);
  JsonFields fields(object);
  take_model(model, fields);
  CompletionRequest request;
  request.sampling = parse_sampling(model, fields);
  request.stops = parse_stops(fields);
  request.echo = fields.flag("echo", false);
  request.logprobs = fields.integer("logprobs", {0, kMostLogprobs});
  if (request.logprobs) request.logprobs = std::min(*request.logprobs, model.vocabulary);
  request.stream = fields.flag("stream", false);
  request.stream_usage = parse_stream_usage(fields);
  request.n = fields.integer("n", {1, kMostChoices}).value_or(1);
  fields.refuse_unless("best_of", request.n);
  refuse_unsupported(fields);
  const TextRules rules = take_text_rules(model, fields);
  const json& prompt = fields.need("prompt");
  fields.finish();
  request.prompts = parse_prompts(model, prompt, rules);
  check_size(model, request);
  return request;
}

}  // namespace hyperslab::serve
