// SPDX-License-Identifier: Apache-2.0
// The first byte is the size of the pieces in which the others come over a connection. What the
// server understands must not depend on it: the pieces are compared with all at once.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/chat_request.hpp"
#include "fuzz/input.hpp"
#include "http_connection.hpp"

namespace {

using namespace hyperslab;
namespace http = boost::beast::http;
using boost::asio::ip::tcp;

[[noreturn]] void fail(const char* text) {
  std::fprintf(stderr, "%s\n", text);
  std::abort();
}

/// The requests of a handler and the answers that the client got.
struct Seen {
  std::vector<std::string> methods;
  std::vector<std::string> requests;
  std::string answers;
};

void handle(Seen& seen, const serve::HttpRequest& request, serve::HttpReply& reply) {
  seen.methods.push_back(request.method);
  seen.requests.push_back(request.method + ' ' + request.path + ' ' + request.host + ' ' +
                          request.body);
  if (request.path == "/v1/chat/completions") fuzz::read_chat_request(request.body);
  if (request.path != "/stream" || request.method == "HEAD")
    return reply.send({.body = "answer", .headers = {}});
  reply.begin_stream("text/plain");
  reply.stream("a piece");
  reply.end_stream();
}

/// Both ends of a connection; the server's end belongs to a tcp::socket.
class Client {
 public:
  explicit Client(boost::asio::io_context& io) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) fail("no socket pair");
    own_ = ends[0];
    server_ = tcp::socket(io, tcp::v4(), ends[1]);
  }
  ~Client() { ::close(own_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  Client(Client&&) = delete;
  Client& operator=(Client&&) = delete;

  [[nodiscard]] tcp::socket take_server() { return std::move(*server_); }
  void take_answers(std::string& answers) const {
    char bytes[4096];
    for (ssize_t n = 0; (n = ::recv(own_, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) {
      answers.append(bytes, static_cast<std::size_t>(n));
    }
  }
  /// Bytes that were sent; all if the server has closed the connection.
  [[nodiscard]] std::size_t send(std::string_view bytes) const {
    const ssize_t n = ::send(own_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) return static_cast<std::size_t>(n);
    return errno == EAGAIN ? 0 : bytes.size();
  }
  void end() const { ::shutdown(own_, SHUT_WR); }

 private:
  int own_ = -1;
  std::optional<tcp::socket> server_;
};

Seen converse(std::string_view bytes, std::size_t piece) {
  Seen seen;
  boost::asio::io_context io{1};
  serve::HttpConnections all = {
      .io = io,
      .limits = {.body_bytes = 2048, .header_bytes = 512},
      .handler =
          [&](const serve::HttpRequest& request, const std::shared_ptr<serve::HttpReply>& reply) {
            handle(seen, request, *reply);
          },
      .refusal =
          [](int status, const std::string& text) {
            return serve::HttpResponse{.status = status, .body = text, .headers = {}};
          }};
  Client client(io);
  serve::start_connection(all, client.take_server());
  const auto turn = [&] {
    io.restart();
    io.poll();
    client.take_answers(seen.answers);
  };
  for (turn(); !bytes.empty(); turn()) {
    bytes.remove_prefix(client.send(bytes.substr(0, piece)));
  }
  client.end();
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (all.open > 0) {
    if (std::chrono::steady_clock::now() > latest) fail("the connection does not end");
    turn();
  }
  client.take_answers(seen.answers);
  return seen;
}

/// Statuses of the answers, each of which must be whole, less those that ask a client to go on.
std::vector<unsigned> statuses(const Seen& seen) {
  std::vector<unsigned> found;
  boost::beast::error_code error;
  for (std::string_view left = seen.answers; !left.empty();) {
    http::response_parser<http::string_body> parser;
    parser.eager(true);
    parser.skip(found.size() < seen.methods.size() && seen.methods[found.size()] == "HEAD");
    left.remove_prefix(parser.put(boost::asio::buffer(left.data(), left.size()), error));
    if (!error && !parser.is_done()) parser.put_eof(error);
    if (error || !parser.is_done()) fail("an answer is no HTTP");
    if (parser.get().result_int() != 100) found.push_back(parser.get().result_int());
  }
  return found;
}

/// Every request has its answer, and at most one refusal comes after them.
void check_answers(const Seen& seen) {
  const std::vector<unsigned> found = statuses(seen);
  const std::size_t requests = seen.requests.size();
  if (found.size() != requests && found.size() != requests + 1) fail("answers are missing");
  for (std::size_t i = 0; i < requests; ++i) {
    if (found[i] != 200) fail("a request that was handled is refused");
  }
  if (found.size() == requests) return;
  if (found.back() != 400 && found.back() != 413 && found.back() != 431) fail("a strange refusal");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes = fuzz::text_of(data + 1, size - 1);
  const Seen whole = converse(bytes, bytes.size());
  const std::size_t piece = std::max<std::size_t>(data[0], 1);
  const Seen pieces = converse(bytes, piece);
  if (whole.requests != pieces.requests) fail("pieces make other requests");
  check_answers(whole);
  check_answers(pieces);
  return 0;
}
