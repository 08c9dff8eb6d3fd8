// SPDX-License-Identifier: Apache-2.0
// An answer on its way to a client, whole or as a stream.
#pragma once

#include <exception>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/serve/completion.hpp"
#include "hyperslab/serve/completion_json.hpp"
#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

[[nodiscard]] HttpResponse json_response(const nlohmann::ordered_json& json);
[[nodiscard]] HttpResponse error_response(const RequestError& error);

class OpenAnswer {
 public:
  /// The tokenizer and the format must outlive this.
  OpenAnswer(AnswerHead head, const io::Tokenizer& tokenizer,
             std::shared_ptr<const CompletionRequest> request, const AnswerFormat& format,
             std::shared_ptr<HttpReply> reply);

  void add(AnswerPiece piece);
  void end(const Usage& usage, const std::exception_ptr& error);

 private:
  void send(const nlohmann::ordered_json& chunk);
  void end_stream(const Usage& usage);
  void refuse(const std::string& text);

  std::string id_;
  std::shared_ptr<const CompletionRequest> request_;
  AnswerJson json_;
  std::shared_ptr<HttpReply> reply_;
  bool has_begun_ = false;  ///< a stream
};

}  // namespace hyperslab::serve
