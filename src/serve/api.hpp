// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
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
  void route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void require_token(const HttpRequest& request) const;
  void complete(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  [[nodiscard]] HttpResponse models() const;
  [[nodiscard]] HttpResponse tokenizer_info() const;
  [[nodiscard]] HttpResponse tokenize(const std::string& body) const;
  [[nodiscard]] HttpResponse detokenize(const std::string& body) const;

  ServedModel model_;
  generate::Generator& generator_;
  ModelQueue& queue_;
  std::string token_;
  std::int64_t started_;  ///< seconds since 1970
  std::int64_t served_ = 0;
};

}  // namespace hyperslab::serve
