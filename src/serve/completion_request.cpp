// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/completion_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hyperslab/io/json_depth.hpp"
#include "hyperslab/io/json_keys.hpp"
#include "json_fields.hpp"
#include "request_fields.hpp"

namespace hyperslab::serve {
namespace {

using nlohmann::json;

/// An empty prompt begins a document, as it does in `hyperslab generate`.
std::vector<std::int32_t> begun(const ServedModel& model, std::vector<std::int32_t> ids) {
  if (!ids.empty()) return ids;
  const std::int32_t end = model.ends.separator;
  if (end < 0) {
    refuse_field("prompt",
                 "it is empty, and the vocabulary has no end-of-text token to begin with");
  }
  return {end};
}

generate::Prompts parse_prompts(const ServedModel& model, const json& prompt,
                                const TextRules& rules) {
  const auto of_text = [&](const json& text) {
    const auto& bytes = text.get_ref<const std::string&>();
    require_bytes(model, std::ssize(bytes), "prompt");
    return begun(model, encode_text(model, bytes, rules));
  };
  const auto is_text = [](const json& item) { return item.is_string(); };
  const auto is_list = [](const json& item) { return item.is_array(); };
  if (prompt.is_string()) return {of_text(prompt)};
  if (!prompt.is_array() || prompt.empty()) {
    refuse_field("prompt", "expected a text, texts, ids or lists of ids");
  }
  if (std::ssize(prompt) > kMostChoices && (is_text(prompt[0]) || is_list(prompt[0]))) {
    refuse_field("prompt", fmt::format("{} prompts, of which a request takes {} at most",
                                       prompt.size(), kMostChoices));
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
  if (!ids.is_array()) refuse_field(field, "expected a list of ids");
  std::vector<std::int32_t> parsed;
  parsed.reserve(ids.size());
  for (const json& id : ids) {
    const bool fits = id.is_number_unsigned() &&
                      id.get<std::uint64_t>() < static_cast<std::uint64_t>(model.vocabulary);
    if (!fits) refuse_field(field, fmt::format("expected ids of 0 to {}", model.vocabulary - 1));
    parsed.push_back(id.get<std::int32_t>());
  }
  return parsed;
}

CompletionRequest parse_completion_request(const ServedModel& model, std::string_view body) {
  const json object = parse_object(body);
  JsonFields fields(object);
  take_model(model, fields);
  CompletionRequest request = take_shared_fields(model, model.ends.ids, fields);
  request.sampling.max_tokens = fields.integer("max_tokens", {0, model.context}).value_or(16);
  request.echo = fields.flag("echo", false);
  request.logprobs = fields.integer("logprobs", {0, kMostLogprobs});
  if (request.logprobs) request.logprobs = std::min(*request.logprobs, model.vocabulary);
  fields.refuse_unless("best_of", request.n);
  fields.refuse_unless("suffix", "");
  const TextRules rules = take_text_rules(model, fields);
  const json& prompt = fields.need("prompt");
  fields.finish();
  request.prompts = parse_prompts(model, prompt, rules);
  require_size(model, request, "prompt");
  return request;
}

}  // namespace hyperslab::serve
