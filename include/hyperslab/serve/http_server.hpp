// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on Boost.Beast; the handler gives requests their meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hyperslab::serve {

struct HttpLimits {
  std::size_t connections = 128;  ///< at once; others are told to come later (503)
  std::uint64_t body_bytes = std::uint64_t{4} << 20;
  /// The limit of a header, of the lines behind a last chunk, and of all extensions of chunks.
  std::uint32_t header_bytes = std::uint32_t{16} << 10;
  /// A client may take so long to send a whole request or to take a piece of an answer, and may be
  /// silent so long between two requests; then its connection is closed.
  double client_seconds = 30;
};

struct HttpRequest {
  std::string method;
  std::string path;  ///< without a '?' and the text after it
  // Fields of the header, each of which came once at most; empty: it did not come.
  std::string content_type;
  std::string authorization;
  std::string host;
  std::string origin;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  ///< further ones
};

/// Takes the answer to one request: either one send(), or begin_stream(), stream() for every
/// piece and end_stream(). Any thread, one at a time; no call waits for the client.
class HttpReply {
 public:
  HttpReply() = default;
  virtual ~HttpReply() = default;
  HttpReply(const HttpReply&) = delete;
  HttpReply& operator=(const HttpReply&) = delete;
  HttpReply(HttpReply&&) = delete;
  HttpReply& operator=(HttpReply&&) = delete;

  virtual void send(HttpResponse response) = 0;
  virtual void begin_stream(const std::string& content_type) = 0;
  virtual void stream(std::string bytes) = 0;
  virtual void end_stream() = 0;
  /// The client has closed its connection, or the half that it writes to: nothing needs to be
  /// computed any more, and no call has an effect.
  [[nodiscard]] virtual bool is_client_gone() const = 0;
};

/// True if this machine alone reaches an address. Throws Error(usage) if it is none.
[[nodiscard]] bool is_loopback(const std::string& host);

/// One thread serves all connections. Requests of a connection are answered one after the other.
class HttpServer {
 public:
  /// Called on the server's thread; returns at once, and answers now or later. An error that it
  /// throws becomes status 500.
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;
  /// Makes the server's own answer to a request that never reached the handler.
  using Refusal = std::function<HttpResponse(int status, const std::string& text)>;

  /// Listens; port 0: one that is free. Throws Error(usage) for an address that is none or is not
  /// this machine's, and for a port that is taken.
  HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits, Handler handler,
             Refusal refusal);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  HttpServer(HttpServer&&) = delete;
  HttpServer& operator=(HttpServer&&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  /// Before run(): called on the server's thread with the first SIGINT, SIGTERM or SIGUSR1; a
  /// second signal ends the process.
  void on_stop_signal(std::function<void(int signal)> handler);
  /// Serves until stop() was called and the last answer is sent.
  void run();
  /// Any thread: takes no more connections or requests; answers in progress are finished.
  void stop();
  /// Any thread, after stop(): connections that are still open then are closed.
  void end_within(double seconds);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyperslab::serve
