// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/http_server.hpp"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <deque>
#include <set>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::steady_clock;

/// For co_await: an error is written to `error` instead of thrown.
auto into(ErrorCode& error) { return asio::redirect_error(asio::use_awaitable, error); }

steady_clock::duration duration(double seconds) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

/// What a reply hands to its connection.
struct Outgoing {
  enum class Kind : std::uint8_t { response, stream_begin, stream_bytes, stream_end };
  Kind kind = Kind::response;
  HttpResponse response;  ///< stream_begin: its content_type; stream_bytes: its body
};

class Reply final : public HttpReply, public std::enable_shared_from_this<Reply> {
 public:
  explicit Reply(asio::io_context& io) : io_(io), ready_(io) {}

  void send(HttpResponse response) override {
    push({Outgoing::Kind::response, std::move(response)});
  }
  void begin_stream(const std::string& content_type) override {
    push({Outgoing::Kind::stream_begin, {.body = {}, .content_type = content_type, .headers = {}}});
  }
  void stream(std::string bytes) override {
    push({Outgoing::Kind::stream_bytes, {.body = std::move(bytes), .headers = {}}});
  }
  void end_stream() override { push({Outgoing::Kind::stream_end, {}}); }
  [[nodiscard]] bool is_client_gone() const override { return is_gone_; }

  /// On the server's thread: the next of what was pushed, as soon as it is there.
  asio::awaitable<Outgoing> next() {
    while (outgoing_.empty()) {
      ErrorCode ignored;
      ready_.expires_at(steady_clock::time_point::max());
      co_await ready_.async_wait(into(ignored));
    }
    Outgoing first = std::move(outgoing_.front());
    outgoing_.pop_front();
    co_return first;
  }
  void set_client_gone() { is_gone_ = true; }

 private:
  void push(Outgoing next) {
    asio::post(io_, [self = shared_from_this(), next = std::move(next)]() mutable {
      self->outgoing_.push_back(std::move(next));
      self->ready_.cancel();
    });
  }

  asio::io_context& io_;
  asio::steady_timer ready_;
  std::deque<Outgoing> outgoing_;
  std::atomic<bool> is_gone_ = false;
};

http::response<http::string_body> as_beast(const HttpResponse& response, unsigned version,
                                           bool keep_alive) {
  http::response<http::string_body> out(static_cast<http::status>(response.status), version);
  out.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) out.set(name, value);
  out.keep_alive(keep_alive);
  out.body() = response.body;
  out.prepare_payload();
  return out;
}

asio::ip::address address_of(const std::string& host) {
  ErrorCode error;
  asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    throw Error(
        ExitCode::usage,
        fmt::format("--host: expected an address such as 127.0.0.1 or ::1, found '{}'", host));
  }
  return address;
}

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

}  // namespace

bool is_loopback(const std::string& host) { return address_of(host).is_loopback(); }

class HttpServer::Impl {
 public:
  Impl(const std::string& host, std::uint16_t port, const HttpLimits& limits, Handler handler,
       Refusal refusal)
      : limits_(limits),
        handler_(std::move(handler)),
        refusal_(std::move(refusal)),
        acceptor_(io_),
        signals_(io_),
        grace_(io_) {
    listen(host, port);
  }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void on_stop_signal(std::function<void(int)> handler);
  void run();
  void stop() {
    asio::post(io_, [this] { close(); });
  }
  void end_within(double seconds) {
    asio::post(io_, [this, seconds] {
      grace_.expires_after(duration(seconds));
      grace_.async_wait([this](const ErrorCode& error) {
        if (!error) io_.stop();
      });
      end_if_done();
    });
  }

 private:
  void listen(const std::string& host, std::uint16_t port);
  void close();
  void end_if_done() {
    if (is_stopping_ && connections_ == 0) {
      signals_.cancel();
      grace_.cancel();
    }
  }
  asio::awaitable<void> accept();
  asio::awaitable<void> converse(tcp::socket socket);
  asio::awaitable<void> serve(beast::tcp_stream& stream);
  /// false: the connection ends.
  asio::awaitable<bool> serve_one(beast::tcp_stream& stream, beast::flat_buffer& buffer);
  asio::awaitable<bool> read(beast::tcp_stream& stream, beast::flat_buffer& buffer,
                             http::request_parser<http::string_body>& parser, ErrorCode& error);
  asio::awaitable<void> refuse(beast::tcp_stream& stream, int status, const std::string& text);
  asio::awaitable<bool> answer(beast::tcp_stream& stream, Reply& reply, unsigned version,
                               bool keep_alive);
  asio::awaitable<bool> write(beast::tcp_stream& stream, const HttpResponse& response,
                              unsigned version, bool keep_alive);
  asio::awaitable<bool> write_stream(beast::tcp_stream& stream, Reply& reply,
                                     const std::string& content_type, unsigned version,
                                     bool keep_alive);
  void allow(beast::tcp_stream& stream) const {
    stream.expires_after(duration(limits_.client_seconds));
  }

  asio::io_context io_{1};
  HttpLimits limits_;
  Handler handler_;
  Refusal refusal_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer grace_;
  std::set<beast::tcp_stream*> idle_;  ///< connections that wait for a request
  std::size_t connections_ = 0;
  bool is_stopping_ = false;
};

void HttpServer::Impl::listen(const std::string& host, std::uint16_t port) {
  ErrorCode error;
  const tcp::endpoint endpoint(address_of(host), port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    throw Error(ExitCode::usage, fmt::format("cannot listen on {} port {}: {}; choose another "
                                             "--port or --host",
                                             host, port, error.message()));
  }
}

void HttpServer::Impl::on_stop_signal(std::function<void(int)> handler) {
  signals_.add(SIGINT);
  signals_.add(SIGTERM);
  signals_.add(SIGUSR1);
  signals_.async_wait([this, handler = std::move(handler)](const ErrorCode& error, int signal) {
    signals_.clear();  // the next one has its usual effect
    if (!error) handler(signal);
  });
}

void HttpServer::Impl::run() {
  asio::co_spawn(io_, accept(), asio::detached);
  io_.run();
}

void HttpServer::Impl::close() {
  ErrorCode ignored;
  is_stopping_ = true;
  acceptor_.close(ignored);
  for (beast::tcp_stream* stream : idle_) stream->cancel();
  end_if_done();
}

asio::awaitable<void> HttpServer::Impl::accept() {
  constexpr auto kPause = std::chrono::milliseconds(100);
  while (!is_stopping_) {
    ErrorCode error;
    tcp::socket socket = co_await acceptor_.async_accept(into(error));
    if (is_stopping_) break;
    if (error) {  // no more files, say: what is open goes on
      log::warn(fmt::format("a connection could not be taken: {}", error.message()));
      asio::steady_timer pause(io_, kPause);
      co_await pause.async_wait(into(error));
      continue;
    }
    asio::co_spawn(io_, converse(std::move(socket)), asio::detached);
  }
}

asio::awaitable<void> HttpServer::Impl::converse(tcp::socket socket) {
  beast::tcp_stream stream(std::move(socket));
  ++connections_;
  try {
    if (connections_ > limits_.connections) {
      co_await refuse(stream, 503, "too many connections; come again later");
    } else {
      co_await serve(stream);
    }
  } catch (const std::exception& error) {
    log::warn(fmt::format("a connection was closed: {}", error.what()));
  }
  --connections_;
  end_if_done();
}

asio::awaitable<void> HttpServer::Impl::serve(beast::tcp_stream& stream) {
  beast::flat_buffer buffer(limits_.header_bytes + limits_.body_bytes);
  while (!is_stopping_ && co_await serve_one(stream, buffer)) {
  }
  ErrorCode ignored;
  stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
}

/// A request, its body included; false with `error` if there is none.
asio::awaitable<bool> HttpServer::Impl::read(beast::tcp_stream& stream, beast::flat_buffer& buffer,
                                             http::request_parser<http::string_body>& parser,
                                             ErrorCode& error) {
  parser.header_limit(limits_.header_bytes);
  parser.body_limit(limits_.body_bytes);
  allow(stream);
  idle_.insert(&stream);
  co_await http::async_read_header(stream, buffer, parser, into(error));
  idle_.erase(&stream);
  if (error) co_return false;
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
    co_await http::async_write(stream, go_on, into(error));
    if (error) co_return false;
  }
  co_await http::async_read(stream, buffer, parser, into(error));
  co_return !error;
}

asio::awaitable<bool> HttpServer::Impl::serve_one(beast::tcp_stream& stream,
                                                  beast::flat_buffer& buffer) {
  http::request_parser<http::string_body> parser;
  ErrorCode error;
  if (!co_await read(stream, buffer, parser, error)) {
    if (error == http::error::body_limit) {
      co_await refuse(stream, 413,
                      fmt::format("the body has more than {} bytes; send fewer prompts at a time",
                                  limits_.body_bytes));
    } else if (error == http::error::header_limit) {
      co_await refuse(stream, 431, "the request's header is too long");
    } else if (error.category() == make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      co_await refuse(stream, 400, fmt::format("this is no HTTP/1.1 request: {}", error.message()));
    }
    co_return false;
  }
  auto message = parser.release();
  const unsigned version = message.version();
  const bool keep_alive = message.keep_alive() && !is_stopping_;
  std::string path = text_of(message.target());
  path.resize(std::min(path.size(), path.find('?')));
  const auto reply = std::make_shared<Reply>(io_);
  try {
    handler_({.method = text_of(message.method_string()),
              .path = std::move(path),
              .content_type = text_of(message[http::field::content_type]),
              .authorization = text_of(message[http::field::authorization]),
              .body = std::move(message.body())},
             reply);
  } catch (const std::exception& failure) {
    reply->send(refusal_(500, failure.what()));
  }
  co_return co_await answer(stream, *reply, version, keep_alive);
}

/// An answer of the server's own, after which the connection ends. What the client still sends is
/// read for a moment: closing at once would take the answer away from it.
asio::awaitable<void> HttpServer::Impl::refuse(beast::tcp_stream& stream, int status,
                                               const std::string& text) {
  constexpr std::size_t kMostDrained = std::size_t{1} << 26;
  constexpr unsigned kVersion = 11;
  stream.expires_after(std::chrono::seconds(2));
  if (!co_await write(stream, refusal_(status, text), kVersion, false)) co_return;
  ErrorCode error;
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  std::vector<char> sink(std::size_t{1} << 16);
  for (std::size_t drained = 0; !error && drained < kMostDrained;) {
    drained += co_await stream.async_read_some(asio::buffer(sink), into(error));
  }
}

asio::awaitable<bool> HttpServer::Impl::answer(beast::tcp_stream& stream, Reply& reply,
                                               unsigned version, bool keep_alive) {
  stream.expires_never();
  const Outgoing first = co_await reply.next();
  allow(stream);
  const bool sent =
      first.kind == Outgoing::Kind::response
          ? co_await write(stream, first.response, version, keep_alive)
          : co_await write_stream(stream, reply, first.response.content_type, version, keep_alive);
  if (!sent) reply.set_client_gone();
  co_return sent&& keep_alive;
}

asio::awaitable<bool> HttpServer::Impl::write(beast::tcp_stream& stream,
                                              const HttpResponse& response, unsigned version,
                                              bool keep_alive) {
  const auto message = as_beast(response, version, keep_alive);
  ErrorCode error;
  co_await http::async_write(stream, message, into(error));
  co_return !error;
}

/// In chunks (RFC 9112, section 7.1); for HTTP/1.0 up to the end of the connection.
asio::awaitable<bool> HttpServer::Impl::write_stream(beast::tcp_stream& stream, Reply& reply,
                                                     const std::string& content_type,
                                                     unsigned version, bool keep_alive) {
  constexpr unsigned kWithChunks = 11;
  const bool chunked = version >= kWithChunks;
  http::response<http::empty_body> head(http::status::ok, version);
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-cache");
  head.keep_alive(keep_alive && chunked);
  head.chunked(chunked);
  http::response_serializer<http::empty_body> serializer(head);
  ErrorCode error;
  co_await http::async_write_header(stream, serializer, into(error));
  while (!error) {
    stream.expires_never();
    const Outgoing next = co_await reply.next();
    allow(stream);
    const bool ends = next.kind == Outgoing::Kind::stream_end;
    const auto bytes = asio::buffer(next.response.body);
    if (chunked && ends) {
      co_await asio::async_write(stream, http::make_chunk_last(), into(error));
    } else if (chunked) {
      co_await asio::async_write(stream, http::make_chunk(bytes), into(error));
    } else {
      co_await asio::async_write(stream, bytes, into(error));
    }
    if (ends) break;
  }
  co_return !error && chunked;
}

HttpServer::HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits,
                       Handler handler, Refusal refusal)
    : impl_(std::make_unique<Impl>(host, port, limits, std::move(handler), std::move(refusal))) {}
HttpServer::~HttpServer() = default;
std::uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::on_stop_signal(std::function<void(int)> handler) {
  impl_->on_stop_signal(std::move(handler));
}
void HttpServer::run() { impl_->run(); }
void HttpServer::stop() { impl_->stop(); }
void HttpServer::end_within(double seconds) { impl_->end_within(seconds); }

}  // namespace hyperslab::serve
