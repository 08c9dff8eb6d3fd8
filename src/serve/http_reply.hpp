// SPDX-License-Identifier: Apache-2.0
// The way of an answer from the thread that makes it to its connection.
#pragma once

// clang-format off
#include <utility>  // awaitable.hpp of Boost 1.74 uses it without including it
// clang-format on

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

/// A part of an answer.
struct Outgoing {
  enum class Kind : std::uint8_t { response, stream_begin, stream_bytes, stream_end };
  Kind kind = Kind::response;
  HttpResponse response;  ///< stream_begin: its content_type; stream_bytes: its body
};

class Reply final : public HttpReply, public std::enable_shared_from_this<Reply> {
 public:
  explicit Reply(boost::asio::io_context& io) : io_(io), ready_(io) {}

  void send(HttpResponse response) override;
  void begin_stream(const std::string& content_type) override;
  void stream(std::string bytes) override;
  void end_stream() override;
  [[nodiscard]] bool is_client_gone() const override { return is_gone_; }

  /// On the thread that runs `io`: the next part, as soon as it is there. Nothing if the other end
  /// of `socket` closes the half that it writes to, or all: then the client is gone.
  boost::asio::awaitable<std::optional<Outgoing>> next(boost::asio::ip::tcp::socket& socket);
  void set_client_gone() { is_gone_ = true; }

 private:
  void push(Outgoing next);

  boost::asio::io_context& io_;
  boost::asio::steady_timer ready_;
  std::deque<Outgoing> outgoing_;
  std::atomic<bool> is_gone_ = false;
};

}  // namespace hyperslab::serve
