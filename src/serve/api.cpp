// SPDX-License-Identifier: Apache-2.0
#include "api.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/serve/chat_request.hpp"
#include "hyperslab/serve/completion.hpp"
#include "hyperslab/serve/completion_json.hpp"
#include "json_fields.hpp"
#include "open_answer.hpp"

namespace hyperslab::serve {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

/// True if two texts are equal, in a time that only their lengths decide.
bool are_equal_slowly(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(other);
  }
  return difference == 0;
}

/// True if the Content-Type of a request is JSON's.
bool is_json(const HttpRequest& request) {
  std::string type = request.content_type.substr(0, request.content_type.find(';'));
  std::erase(type, ' ');
  std::ranges::transform(type, type.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return type == "application/json";
}

std::vector<std::int32_t> tokenize_text(const ServedModel& model, JsonFields& fields) {
  const TextRules rules = take_text_rules(model, fields);
  const auto text = fields.text("prompt");
  fields.finish();
  if (!text) {
    throw RequestError(400, "prompt: expected a text, or messages, found none", "prompt");
  }
  return encode_text(model, *text, rules);
}

std::vector<std::int32_t> tokenize_chat(const ServedModel& model, const JsonFields& fields,
                                        std::string_view body) {
  fields.finish();
  return encode_messages(model, body);
}

}  // namespace

struct Api::Route {
  std::string_view method;
  std::string_view path;
  void (Api::*answer)(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  Worker Api::*worker = nullptr;  ///< that reads the body; null: there is none
};

std::span<const Api::Route> Api::routes() {
  static constexpr std::array kRoutes = {
      Route{"GET", "/health", &Api::health},
      Route{"GET", "/v1/models", &Api::models},
      Route{"GET", "/tokenizer_info", &Api::tokenizer_info},
      Route{"POST", "/tokenize", &Api::tokenize, &Api::texts_},
      Route{"POST", "/detokenize", &Api::detokenize, &Api::texts_},
      Route{"POST", "/v1/completions", &Api::complete, &Api::completions_},
      Route{"POST", "/v1/chat/completions", &Api::chat, &Api::completions_}};
  return kRoutes;
}

std::string Api::known_paths() {
  std::string all;
  for (const Route& route : routes()) {
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", route.method, route.path);
  }
  return all;
}

/// Refuses requests that no route takes. A page of another site can make a browser send other types
/// of content here without asking, but not JSON.
const Api::Route& Api::route_of(const HttpRequest& request) {
  const auto route = std::ranges::find(routes(), request.path, &Route::path);
  if (route == routes().end()) {
    throw RequestError(
        404, fmt::format("there is nothing at {}; there are: {}",
                         printable(std::string_view(request.path).substr(0, 64)), known_paths()));
  }
  if (request.method != route->method) {
    throw RequestError(405, fmt::format("{} takes {} alone", route->path, route->method));
  }
  if (request.method == "POST" && !is_json(request)) {
    throw RequestError(415,
                       "the body must be JSON, with the header Content-Type: application/json");
  }
  return *route;
}

Api::Api(ServedModel model, generate::Generator& generator, ModelQueue& queue, ApiAccess access)
    : model_(std::move(model)),
      generator_(generator),
      queue_(queue),
      access_(std::move(access)),
      started_(seconds_now()),
      completions_(access_.waiting),
      texts_(access_.waiting) {}

HttpResponse Api::refusal(int status, const std::string& text) {
  return error_response(RequestError(status, text));
}

void Api::answer(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  try {
    require_access(request);
    const Route& route = route_of(request);
    if (route.worker == nullptr) return call(route, request, reply);
    read_later(route, std::move(request), reply);
  } catch (const RequestError& error) {
    reply->send(error_response(error));
  }
}

/// Does not throw.
void Api::call(const Route& route, const HttpRequest& request,
               const std::shared_ptr<HttpReply>& reply) {
  if (reply->is_client_gone()) return;
  try {
    if (is_stopping_) throw RequestError(503, "the server is stopping");
    (this->*route.answer)(request, reply);
  } catch (const RequestError& error) {
    reply->send(error_response(error));
  } catch (const std::exception& error) {
    reply->send(refusal(500, error.what()));
  }
}

void Api::read_later(const Route& route, HttpRequest request, std::shared_ptr<HttpReply> reply) {
  const bool is_taken = (this->*route.worker)
                            .push([this, &route, request = std::move(request),
                                   reply = std::move(reply)] { call(route, request, reply); });
  if (!is_taken) {
    throw RequestError(429, "too many requests wait to be read; come again later");
  }
}

void Api::require_access(const HttpRequest& request) const {
  if (!access_.hosts.allows(request)) {
    throw RequestError(403, fmt::format("this server answers to these names alone, in Host and "
                                        "Origin: {}; ask for one of them, or start the server with "
                                        "--token-file",
                                        access_.hosts.names()));
  }
  if (access_.token.empty() || request.path == "/health") return;
  if (are_equal_slowly(request.authorization, "Bearer " + access_.token)) return;
  throw RequestError(401, "this server asks for its token: send Authorization: Bearer TOKEN");
}

void Api::health(const HttpRequest& /*request*/, const std::shared_ptr<HttpReply>& reply) {
  reply->send(json_response({{"status", "ok"}}));
}

void Api::models(const HttpRequest& /*request*/, const std::shared_ptr<HttpReply>& reply) {
  reply->send(json_response({{"object", "list"},
                             {"data",
                              {{{"id", model_.name},
                                {"object", "model"},
                                {"created", started_},
                                {"owned_by", "hyperslab"},
                                {"max_model_len", model_.context}}}}}));
}

void Api::tokenizer_info(const HttpRequest& /*request*/, const std::shared_ptr<HttpReply>& reply) {
  const io::Tokenizer& tokenizer = *model_.tokenizer;
  const auto name = [&](std::int32_t id) -> Json {
    if (id < 0) return nullptr;
    return id == tokenizer.end_of_text() ? end_of_text_name(tokenizer) : tokenizer.decode(id);
  };
  const io::NamedTokens named = tokenizer.named_tokens();
  reply->send(json_response({{"tokenizer_class", "hyperslab"},
                             {"vocab_size", tokenizer.vocabulary()},
                             {"model_max_length", model_.context},
                             {"eos_token", name(named.eos)},
                             {"bos_token", name(named.bos)},
                             {"pad_token", name(named.pad)}}));
}

void Api::tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const nlohmann::json object = parse_object(request.body);
  JsonFields fields(object);
  take_model(model_, fields);
  const auto ids = fields.take("messages") != nullptr ? tokenize_chat(model_, fields, request.body)
                                                      : tokenize_text(model_, fields);
  reply->send(
      json_response({{"count", ids.size()}, {"max_model_len", model_.context}, {"tokens", ids}}));
}

void Api::detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const nlohmann::json object = parse_object(request.body);
  JsonFields fields(object);
  take_model(model_, fields);
  const auto ids = parse_ids(model_, fields.need("tokens"), "tokens");
  fields.finish();
  io::TextDecoder decoder(*model_.tokenizer);
  io::Utf8Stream stream;
  std::string text;
  for (const std::int32_t id : ids) {
    const bool is_end = id == model_.tokenizer->end_of_text();
    text += stream.push(is_end ? end_of_text_name(*model_.tokenizer) : decoder.next(id));
  }
  text += stream.finish();
  reply->send(json_response({{"prompt", text}}));
}

void Api::complete(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  begin(parse_completion_request(model_, request.body), completion_format(), reply);
}

void Api::chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  begin(parse_chat_request(model_, request.body), chat_format(), reply);
}

void Api::begin(CompletionRequest request, const AnswerFormat& format,
                const std::shared_ptr<HttpReply>& reply) {
  const auto parsed = std::make_shared<const CompletionRequest>(std::move(request));
  const std::string id = fmt::format("{}-{:x}-{}", format.id, started_, ++served_);
  const auto refuse = [reply] { reply->send(refusal(503, "the server is stopping")); };
  const auto start = [this, parsed, &format, id, reply] {
    if (reply->is_client_gone()) return;
    auto answer = std::make_shared<OpenAnswer>(AnswerHead{id, model_.name, seconds_now()},
                                               *model_.tokenizer, parsed, format, reply);
    begin_completion(generator_, *model_.tokenizer, parsed,
                     {.take = [answer](AnswerPiece piece) { answer->add(std::move(piece)); },
                      .is_there = [reply] { return !reply->is_client_gone(); }},
                     [answer](const Usage& usage, const std::exception_ptr& error) {
                       answer->end(usage, error);
                     });
  };
  switch (queue_.push({start, refuse, scores_prompts(*parsed)})) {
    case ModelQueue::Pushed::taken: break;
    case ModelQueue::Pushed::full:
      throw RequestError(429, "too many requests wait for the model; come again later");
    case ModelQueue::Pushed::closed: refuse();
  }
}

}  // namespace hyperslab::serve
