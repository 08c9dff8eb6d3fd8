// SPDX-License-Identifier: Apache-2.0
#include "open_answer.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "hyperslab/core/log.hpp"

namespace hyperslab::serve {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

}  // namespace

HttpResponse json_response(const Json& value) {
  return {.body = dump(value) + "\n", .headers = {}};
}

HttpResponse error_response(const RequestError& error) {
  HttpResponse out = {
      .status = error.status(), .body = dump(error_json(error)) + "\n", .headers = {}};
  constexpr int kUnauthorized = 401;
  constexpr int kTooMany = 429;
  constexpr int kUnavailable = 503;
  if (error.status() == kUnauthorized) out.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status() == kTooMany || error.status() == kUnavailable) {
    out.headers.emplace_back("Retry-After", "1");
  }
  return out;
}

OpenAnswer::OpenAnswer(AnswerHead head, const io::Tokenizer& tokenizer,
                       std::shared_ptr<const CompletionRequest> request, const AnswerFormat& format,
                       std::shared_ptr<HttpReply> reply)
    : id_(head.id),
      request_(std::move(request)),
      json_(std::move(head), tokenizer, *request_, format),
      reply_(std::move(reply)) {}

void OpenAnswer::send(const Json& chunk) {
  if (!has_begun_) reply_->begin_stream("text/event-stream");
  has_begun_ = true;
  reply_->stream(event(dump(chunk)));
}

void OpenAnswer::add(AnswerPiece piece) {
  if (!request_->stream) return json_.add(std::move(piece));
  for (const Json& chunk : json_.chunks(piece)) send(chunk);
}

void OpenAnswer::end_stream(const Usage& usage) {
  if (request_->stream_usage) send(json_.usage_chunk(usage));
  reply_->stream(event("[DONE]"));
  reply_->end_stream();
}

void OpenAnswer::refuse(const std::string& text) {
  log::error(fmt::format("answer {}: {}", id_, text));
  const RequestError error(500, text);
  if (!has_begun_) return reply_->send(error_response(error));
  reply_->stream(event(dump(error_json(error))));
  reply_->end_stream();
}

void OpenAnswer::end(const Usage& usage, const std::exception_ptr& error) {
  if (reply_->is_client_gone()) return;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& what) {  // e.g. the model's logits are not finite
    return refuse(what.what());
  }
  request_->stream ? end_stream(usage) : reply_->send(json_response(json_.whole(usage)));
}

}  // namespace hyperslab::serve
