// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/serve/completion_request.hpp"
#include "hyperslab/serve/http_server.hpp"
#include "hyperslab/serve/model_queue.hpp"

namespace hyperslab::serve {

/// What the paths of the server mean.
class Api {
 public:
  /// `token`: that requests must bring; empty: none. The model, its tokenizer, the generator and
  /// the queue must outlive this.
  Api(ServedModel model, generate::Generator& generator, ModelQueue& queue, std::string token);

  /// On the server's thread. Completions begin when the queue's thread comes to them.
  void answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  [[nodiscard]] static HttpResponse refusal(int status, const std::string& text);

 private:
  struct Route;
  [[nodiscard]] static std::span<const Route> routes();
  [[nodiscard]] static std::string known_paths();
  [[nodiscard]] static const Route& route_of(const HttpRequest& request);
  void require_token(const HttpRequest& request) const;
  // What answers a path.
  void health(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void models(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void tokenizer_info(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void complete(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

  ServedModel model_;
  generate::Generator& generator_;
  ModelQueue& queue_;
  std::string token_;
  std::int64_t started_;  ///< seconds since 1970
  std::int64_t served_ = 0;
};

}  // namespace hyperslab::serve
