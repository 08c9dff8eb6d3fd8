// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "host_rule.hpp"
#include "hyperslab/generate/generate.hpp"
#include "hyperslab/serve/completion_json.hpp"
#include "hyperslab/serve/completion_request.hpp"
#include "hyperslab/serve/http_server.hpp"
#include "hyperslab/serve/model_queue.hpp"
#include "worker.hpp"

namespace hyperslab::serve {

/// The rules of who is answered.
struct ApiAccess {
  std::string token;         ///< that requests must bring; empty: none
  HostRule hosts;            ///< by which the server may be asked
  std::size_t waiting = 64;  ///< requests of each kind that may wait to be read
};

/// The meaning of the server's paths. Requests with a body are read by threads of their own, one
/// for completions and one for the others, as texts may take seconds to encode.
class Api {
 public:
  /// The model, its tokenizer, the generator and the queue must outlive this, and so must all that
  /// replies use.
  Api(ServedModel model, generate::Generator& generator, ModelQueue& queue, ApiAccess access);

  /// On the server's thread. Answers of the model begin when the queue's thread comes to them.
  void answer(HttpRequest request, std::shared_ptr<HttpReply> reply);
  /// Any thread: requests that wait to be read are refused.
  void stop() { is_stopping_ = true; }
  [[nodiscard]] static HttpResponse refusal(int status, const std::string& text);

 private:
  struct Route;
  [[nodiscard]] static std::span<const Route> routes();
  [[nodiscard]] static std::string known_paths();
  [[nodiscard]] static const Route& route_of(const HttpRequest& request);
  void require_access(const HttpRequest& request) const;
  void call(const Route& route, const HttpRequest& request,
            const std::shared_ptr<HttpReply>& reply);
  void read_later(const Route& route, HttpRequest request, std::shared_ptr<HttpReply> reply);
  // Handlers, one for each path.
  void health(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void models(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void tokenizer_info(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void complete(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void begin(CompletionRequest request, const AnswerFormat& format,
             const std::shared_ptr<HttpReply>& reply);

  ServedModel model_;
  generate::Generator& generator_;
  ModelQueue& queue_;
  ApiAccess access_;
  std::int64_t started_;  ///< seconds since 1970
  std::int64_t served_ = 0;
  std::atomic<bool> is_stopping_ = false;
  Worker completions_;  // the last members: their threads use the others
  Worker texts_;
};

}  // namespace hyperslab::serve
