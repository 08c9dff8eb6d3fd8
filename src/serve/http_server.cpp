// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/http_server.hpp"

#include <fmt/format.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "http_connection.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"

namespace hyperslab::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

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

}  // namespace

bool is_loopback(const std::string& host) { return address_of(host).is_loopback(); }

class HttpServer::Impl {
 public:
  Impl(const std::string& host, std::uint16_t port, const HttpLimits& limits, Handler handler,
       Refusal refusal)
      : all_{.io = io_,
             .limits = limits,
             .handler = std::move(handler),
             .refusal = std::move(refusal),
             .on_close = [this] { end_if_done(); }},
        acceptor_(io_),
        signals_(io_),
        grace_(io_) {
    listen(host, port);
  }
  ~Impl() { all_.on_close = {}; }  // connections that are still open end with io_
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  Impl(Impl&&) = delete;
  Impl& operator=(Impl&&) = delete;

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  void on_stop_signal(std::function<void(int)> handler);
  void run();
  void stop() {
    asio::post(io_, [this] { close(); });
  }
  void end_within(double seconds);

 private:
  void listen(const std::string& host, std::uint16_t port);
  void close();
  void end_if_done();
  asio::awaitable<void> accept();
  asio::awaitable<bool> accept_one();

  HttpConnections all_;  // outlives io_, which holds the connections
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer grace_;
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

/// An exception within an asynchronous operation comes out of io_context::run(), past the coroutine
/// that waits for the operation: Asio destroys that coroutine, and its connection with it.
void HttpServer::Impl::run() {
  asio::co_spawn(io_, accept(), asio::detached);
  for (bool ends = false; !ends;) {
    try {
      io_.run();
      ends = true;
    } catch (const std::exception& error) {
      log::warn(fmt::format("what a connection waited for failed: {}; it is closed",
                            printable(error.what())));
    }
  }
}

void HttpServer::Impl::close() {
  ErrorCode ignored;
  all_.is_stopping = true;
  acceptor_.close(ignored);
  all_.wake_idle();
  end_if_done();
}

void HttpServer::Impl::end_within(double seconds) {
  asio::post(io_, [this, seconds] {
    grace_.expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds)));
    grace_.async_wait([this](const ErrorCode& error) {
      if (!error) io_.stop();
    });
    end_if_done();
  });
}

void HttpServer::Impl::end_if_done() {
  if (all_.is_stopping && all_.open == 0) {
    signals_.cancel();
    grace_.cancel();
  }
}

asio::awaitable<void> HttpServer::Impl::accept() {
  constexpr auto kPause = std::chrono::milliseconds(100);
  while (!all_.is_stopping) {
    if (co_await accept_one() || all_.is_stopping) continue;
    ErrorCode ignored;
    asio::steady_timer pause(io_, kPause);
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

/// false: there was no connection, or no memory for it; open connections go on.
asio::awaitable<bool> HttpServer::Impl::accept_one() {
  try {
    ErrorCode error;
    tcp::socket socket =
        co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (all_.is_stopping) co_return false;
    if (!error) {
      start_connection(all_, std::move(socket));
      co_return true;
    }
    log::warn(fmt::format("a connection could not be taken: {}", error.message()));
  } catch (const std::exception& error) {
    log::warn(fmt::format("a connection could not be taken: {}", printable(error.what())));
  }
  co_return false;
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
