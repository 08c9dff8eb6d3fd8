// SPDX-License-Identifier: Apache-2.0
#include "http_connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "http_parser.hpp"
#include "http_reply.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"

namespace hyperslab::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

/// For co_await: an error is written to `error` instead of thrown.
auto into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

/// The form of the answer to a request.
struct AnswerForm {
  unsigned version = kHttp11;
  bool keep_alive = false;
  bool is_head = false;  ///< the answer to HEAD has no body (RFC 9110, section 9.3.2)
};

http::response<http::string_body> as_beast(const HttpResponse& response, const AnswerForm& form) {
  http::response<http::string_body> out(static_cast<http::status>(response.status), form.version);
  out.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) out.set(name, value);
  out.keep_alive(form.keep_alive);
  out.content_length(response.body.size());
  if (!form.is_head) out.body() = response.body;
  return out;
}

class Connection {
 public:
  Connection(HttpConnections& all, tcp::socket socket)
      : all_(all),
        stream_(std::move(socket)),
        buffer_(std::max<std::size_t>(all.limits.header_bytes, kLeastBuffer)) {
    ++all_.open;
  }
  ~Connection() {
    all_.idle.erase(&stream_);
    --all_.open;
    if (all_.on_close) all_.on_close();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  Connection(Connection&&) = delete;
  Connection& operator=(Connection&&) = delete;

  asio::awaitable<void> serve();

 private:
  static constexpr std::size_t kLeastBuffer = std::size_t{1} << 12;
  enum class Until : std::uint8_t { header, all };

  /// false: the connection ends.
  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> read(RequestParser& parser);
  asio::awaitable<bool> read_until(Until until, RequestParser& parser);
  asio::awaitable<bool> read_more();
  asio::awaitable<void> refuse(const Refused& refused);
  asio::awaitable<bool> answer(Reply& reply, const AnswerForm& form);
  asio::awaitable<bool> write(const HttpResponse& response, const AnswerForm& form);
  asio::awaitable<bool> write_stream(Reply& reply, const std::string& content_type,
                                     const AnswerForm& form);
  asio::awaitable<bool> write_head(const std::string& content_type, const AnswerForm& form);
  void allow() {
    stream_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(all_.limits.client_seconds)));
  }

  HttpConnections& all_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;  ///< holds a header, or the fields behind the last chunk, at most
};

asio::awaitable<void> Connection::serve() {
  if (all_.open > all_.limits.connections) {
    const Refused refused = {503, "too many connections; come again later"};
    co_await refuse(refused);
    co_return;
  }
  while (!all_.is_stopping && co_await serve_one()) {
  }
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

/// false: the connection ends, without a request or after one that was refused.
asio::awaitable<bool> Connection::read(RequestParser& parser) {
  allow();
  all_.idle.insert(&stream_);
  const bool has_header = co_await read_until(Until::header, parser);
  bool has_all = has_header;
  if (has_header && !parser.is_done() && parser.expects_continue()) {
    const http::response<http::empty_body> go_on(http::status::continue_, kHttp11);
    ErrorCode error;
    co_await http::async_write(stream_, go_on, into(error));
    has_all = !error;
  }
  if (has_all) has_all = co_await read_until(Until::all, parser);
  all_.idle.erase(&stream_);
  if (!has_all && parser.refused().status != 0) co_await refuse(parser.refused());
  co_return has_all;
}

/// false: the client has left, or the parser has refused the request.
asio::awaitable<bool> Connection::read_until(Until until, RequestParser& parser) {
  const auto is_done = [&] {
    return until == Until::header ? parser.is_header_done() : parser.is_done();
  };
  while (!is_done()) {
    const auto bytes = buffer_.cdata();
    ErrorCode error;
    buffer_.consume(parser.read({static_cast<const char*>(bytes.data()), bytes.size()}, error));
    if (!error) continue;
    if (error != http::error::need_more) co_return false;
    if (buffer_.size() == buffer_.max_size()) {
      parser.refuse_size();
      co_return false;
    }
    if (!co_await read_more()) co_return false;
  }
  co_return true;
}

asio::awaitable<bool> Connection::read_more() {
  ErrorCode error;
  const auto room = buffer_.prepare(buffer_.max_size() - buffer_.size());
  buffer_.commit(co_await stream_.async_read_some(room, into(error)));
  co_return !error;
}

asio::awaitable<bool> Connection::serve_one() {
  RequestParser parser(all_.limits);
  if (!co_await read(parser)) co_return false;
  HttpRequest request = std::move(parser.request());
  const AnswerForm form = {.version = parser.version(),
                           .keep_alive = parser.keep_alive() && !all_.is_stopping,
                           .is_head = request.method == "HEAD"};
  const auto reply = std::make_shared<Reply>(all_.io);
  try {
    all_.handler(std::move(request), reply);
  } catch (const std::exception& failure) {
    reply->send(all_.refusal(500, failure.what()));
  }
  const bool goes_on = co_await answer(*reply, form);
  if (!goes_on) reply->set_client_gone();
  co_return goes_on;
}

/// An answer of the server's own, after which the connection ends. Bytes that the client still
/// sends are read for a moment: closing at once would take the answer away from it.
asio::awaitable<void> Connection::refuse(const Refused& refused) {
  constexpr std::size_t kMostDrained = std::size_t{1} << 26;
  stream_.expires_after(std::chrono::seconds(2));
  const HttpResponse response = all_.refusal(refused.status, refused.text);
  const AnswerForm form;
  if (!co_await write(response, form)) co_return;
  ErrorCode error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  std::vector<char> sink(std::size_t{1} << 16);
  for (std::size_t drained = 0; !error && drained < kMostDrained;) {
    drained += co_await stream_.async_read_some(asio::buffer(sink), into(error));
  }
}

/// false: no request may follow.
asio::awaitable<bool> Connection::answer(Reply& reply, const AnswerForm& form) {
  stream_.expires_never();
  const std::optional<Outgoing> first = co_await reply.next(stream_.socket());
  if (!first) co_return false;
  allow();
  const bool sent = first->kind == Outgoing::Kind::response
                        ? co_await write(first->response, form)
                        : co_await write_stream(reply, first->response.content_type, form);
  co_return sent&& form.keep_alive;
}

asio::awaitable<bool> Connection::write(const HttpResponse& response, const AnswerForm& form) {
  const auto message = as_beast(response, form);
  ErrorCode error;
  co_await http::async_write(stream_, message, into(error));
  co_return !error;
}

asio::awaitable<bool> Connection::write_head(const std::string& content_type,
                                             const AnswerForm& form) {
  const bool chunked = form.version >= kHttp11;
  http::response<http::empty_body> head(http::status::ok, form.version);
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(form.keep_alive && chunked);
  head.chunked(chunked);
  http::response_serializer<http::empty_body> serializer(head);
  ErrorCode error;
  co_await http::async_write_header(stream_, serializer, into(error));
  co_return !error;
}

/// In chunks (RFC 9112, section 7.1); for HTTP/1.0 up to the end of the connection.
asio::awaitable<bool> Connection::write_stream(Reply& reply, const std::string& content_type,
                                               const AnswerForm& form) {
  const bool chunked = form.version >= kHttp11;
  if (!co_await write_head(content_type, form)) co_return false;
  ErrorCode error;
  while (!error) {
    stream_.expires_never();
    const std::optional<Outgoing> next = co_await reply.next(stream_.socket());
    if (!next) co_return false;
    allow();
    const bool ends = next->kind == Outgoing::Kind::stream_end;
    const auto bytes = asio::buffer(next->response.body);
    if (chunked && ends) {
      co_await asio::async_write(stream_, http::make_chunk_last(), into(error));
    } else if (chunked) {
      co_await asio::async_write(stream_, http::make_chunk(bytes), into(error));
    } else {
      co_await asio::async_write(stream_, bytes, into(error));
    }
    if (ends) break;
  }
  co_return !error && chunked;
}

void warn_closed(const std::string& reason) {
  log::warn(fmt::format("a connection was closed: {}", printable(reason)));
}

asio::awaitable<void> converse(HttpConnections& all, tcp::socket socket) {
  try {
    Connection connection(all, std::move(socket));
    co_await connection.serve();
  } catch (const std::exception& error) {
    warn_closed(error.what());
  } catch (...) {
    warn_closed("an exception without a text");
  }
}

}  // namespace

void HttpConnections::wake_idle() {
  for (beast::tcp_stream* stream : idle) stream->cancel();
}

void start_connection(HttpConnections& all, tcp::socket socket) {
  asio::co_spawn(all.io, converse(all, std::move(socket)), asio::detached);
}

}  // namespace hyperslab::serve
