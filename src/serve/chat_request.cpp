// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/chat_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/chat_tokens.hpp"
#include "json_fields.hpp"
#include "request_fields.hpp"

namespace hyperslab::serve {
namespace {

const io::ChatEncoder& encoder_of(const ServedModel& model) {
  if (model.chats == nullptr) throw RequestError(400, model.no_chats);
  return *model.chats;
}

/// The tokens that end an answer.
std::vector<std::int32_t> answer_ends(const ServedModel& model, const io::ChatEncoder& encoder) {
  std::vector<std::int32_t> ends = model.ends.ids;
  for (const std::int32_t id : encoder.turn_ends()) {
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  }
  return ends;
}

/// Both names of the interface; absent: neither was given.
std::optional<std::int64_t> take_most_tokens(const ServedModel& model, JsonFields& fields) {
  const auto former = fields.integer("max_tokens", {0, model.context});
  const auto present = fields.integer("max_completion_tokens", {0, model.context});
  if (former && present && *former != *present) {
    refuse_field("max_tokens",
                 fmt::format("it is {}, and max_completion_tokens, which means the same, is {}; "
                             "leave one of them out",
                             *former, *present));
  }
  return present ? present : former;
}

std::optional<std::int64_t> take_logprobs(const ServedModel& model, JsonFields& fields) {
  const bool is_wanted = fields.flag("logprobs", false);
  const std::int64_t top = fields.integer("top_logprobs", {0, kMostLogprobs}).value_or(0);
  if (is_wanted) return std::min(top, model.vocabulary);
  if (top > 0) refuse_field("top_logprobs", "it needs \"logprobs\": true");
  return {};
}

void refuse_tools(JsonFields& fields) {
  const nlohmann::json* tools = fields.take("tools");
  if (tools != nullptr && *tools != nlohmann::json::array()) {
    refuse_field("tools",
                 "no chat template here writes the descriptions of tools; leave the field out, or "
                 "describe them in a system message");
  }
  fields.refuse_unless("tool_choice", "none");
  fields.refuse_unless("response_format", {{"type", "text"}});
}

/// New tokens for which context and limits have room, at least one.
std::int64_t room(const ServedModel& model, const CompletionRequest& request) {
  const auto length = std::ssize(request.prompts.front());
  const std::int64_t in_request = kMostRequestTokens / (1 + request.logprobs.value_or(0));
  return std::max<std::int64_t>(
      1, std::min(model.context + 1 - length, in_request / request.n - length));
}

}  // namespace

std::vector<std::int32_t> encode_messages(const ServedModel& model, std::string_view body) {
  const io::ChatEncoder& encoder = encoder_of(model);
  try {
    const std::vector<io::ChatMessage> messages = io::read_chat(body);
    const auto pieces = encoder.form().render(messages, io::TrainOn::last, io::ChatEnd::prompt);
    std::int64_t bytes = 0;
    for (const io::ChatPiece& piece : pieces) bytes += std::ssize(piece.text);
    require_bytes(model, bytes, "messages");
    return encoder.encode(pieces).ids;
  } catch (const Error& error) {
    if (error.code() != ExitCode::data) throw;
    throw RequestError(400, fmt::format("messages: {}", error.what()), "messages");
  }
}

CompletionRequest parse_chat_request(const ServedModel& model, std::string_view body) {
  const nlohmann::json object = parse_object(body);
  JsonFields fields(object);
  take_model(model, fields);
  const io::ChatEncoder& encoder = encoder_of(model);
  CompletionRequest request = take_shared_fields(model, answer_ends(model, encoder), fields);
  const std::optional<std::int64_t> most_tokens = take_most_tokens(model, fields);
  request.logprobs = take_logprobs(model, fields);
  refuse_tools(fields);
  (void)fields.need("messages");
  fields.finish();
  request.lead = encoder.form().answer_lead();
  request.prompts = {encode_messages(model, body)};
  request.sampling.max_tokens = most_tokens.value_or(room(model, request));
  require_size(model, request, "messages");
  return request;
}

}  // namespace hyperslab::serve
