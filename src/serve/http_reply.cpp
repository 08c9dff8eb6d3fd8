// SPDX-License-Identifier: Apache-2.0
#include "http_reply.hpp"

#include <poll.h>

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

namespace hyperslab::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// True if the other end writes no more. Bytes that it sent before stay in the socket.
bool has_left(tcp::socket& socket) {
  pollfd watched = {.fd = socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&watched, 1, 0) > 0;
}

}  // namespace

void Reply::send(HttpResponse response) { push({Outgoing::Kind::response, std::move(response)}); }

void Reply::begin_stream(const std::string& content_type) {
  push({Outgoing::Kind::stream_begin, {.body = {}, .content_type = content_type, .headers = {}}});
}

void Reply::stream(std::string bytes) {
  push({Outgoing::Kind::stream_bytes, {.body = std::move(bytes), .headers = {}}});
}

void Reply::end_stream() { push({Outgoing::Kind::stream_end, {}}); }

void Reply::push(Outgoing next) {
  asio::post(io_, [self = shared_from_this(), next = std::move(next)]() mutable {
    self->outgoing_.push_back(std::move(next));
    self->ready_.cancel();
  });
}

asio::awaitable<std::optional<Outgoing>> Reply::next(tcp::socket& socket) {
  constexpr auto kWatch = std::chrono::milliseconds(200);
  while (outgoing_.empty()) {
    boost::system::error_code ignored;
    ready_.expires_after(kWatch);
    co_await ready_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (outgoing_.empty() && has_left(socket)) {
      set_client_gone();
      co_return std::nullopt;
    }
  }
  Outgoing first = std::move(outgoing_.front());
  outgoing_.pop_front();
  co_return first;
}

}  // namespace hyperslab::serve
