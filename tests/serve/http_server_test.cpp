// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/serve/http_server.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

namespace hyperslab::test {
namespace {

using boost::asio::ip::tcp;
using serve::HttpReply;
using serve::HttpRequest;
using serve::HttpResponse;

/// A server of a handler, and what a client gets from it.
class HttpServer : public ::testing::Test {
 protected:
  void TearDown() override {
    server_.stop();
    server_.end_within(1);
    thread_.join();
  }
  [[nodiscard]] tcp::socket connect() {
    tcp::socket socket(io_);
    socket.connect({boost::asio::ip::make_address("127.0.0.1"), server_.port()});
    return socket;
  }
  /// Every byte until the server closes.
  [[nodiscard]] std::string ask(const std::string& bytes) {
    tcp::socket socket = connect();
    boost::system::error_code ignored;
    boost::asio::write(socket, boost::asio::buffer(bytes), ignored);
    std::string found;
    boost::asio::read(socket, boost::asio::dynamic_buffer(found), ignored);
    return found;
  }
  void run() {
    thread_ = std::thread([this] { server_.run(); });
  }

  std::atomic<int> handled_ = 0;
  std::shared_ptr<HttpReply> open_;
  std::atomic<bool> is_open_ = false;
  boost::asio::io_context io_;
  serve::HttpServer server_{"127.0.0.1",
                            0,
                            {},
                            [this](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
                              ++handled_;
                              if (request.path == "/throw")
                                throw std::runtime_error("a handler\nfails");
                              if (request.path == "/throw_int")
                                throw 1;  // NOLINT(hicpp-exception-baseclass)
                              if (request.path != "/wait")
                                return reply->send({.body = request.body, .headers = {}});
                              open_ = std::move(reply);
                              is_open_ = true;
                            },
                            [](int status, const std::string& text) {
                              return HttpResponse{.status = status, .body = text, .headers = {}};
                            }};
  std::thread thread_;
};

const std::string kEnd = "Host: x\r\nConnection: close\r\n\r\n";

TEST_F(HttpServer, GoesOnAfterAnExceptionOutOfItsLoop) {
  std::atomic<bool> has_thrown = false;
  server_.on_stop_signal([&](int /*signal*/) {
    has_thrown = true;
    throw std::runtime_error("out of io_context::run()");
  });
  run();
  (void)std::raise(SIGUSR1);
  EXPECT_NE(ask("GET / HTTP/1.1\r\n" + kEnd).find(" 200 "), std::string::npos);
  EXPECT_TRUE(has_thrown);
}

TEST_F(HttpServer, WhatAHandlerThrowsEndsOneConnectionAtMost) {
  run();
  EXPECT_NE(ask("GET /throw HTTP/1.1\r\n" + kEnd).find(" 500 "), std::string::npos);
  EXPECT_EQ(ask("GET /throw_int HTTP/1.1\r\n" + kEnd), "");
  EXPECT_NE(ask("GET / HTTP/1.1\r\n" + kEnd).find(" 200 "), std::string::npos);
}

TEST_F(HttpServer, WhatFollowsARefusedRequestIsNoRequest) {
  run();
  const std::string found = ask(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\nGET / HTTP/1.1\r\n" + kEnd);

  EXPECT_EQ(found.rfind("HTTP/1.1 400", 0), 0U) << found;
  EXPECT_EQ(handled_, 0);
}

TEST_F(HttpServer, AnEmptyHostIsNone) {
  run();
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: \r\n\r\n").rfind("HTTP/1.1 400", 0), 0U);
  EXPECT_EQ(handled_, 0);
}

TEST_F(HttpServer, AStopDoesNotWaitForTheRestOfARequest) {
  run();
  tcp::socket socket = connect();
  const std::string begun = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc";
  boost::asio::write(socket, boost::asio::buffer(begun));
  EXPECT_NE(ask("GET / HTTP/1.1\r\n" + kEnd).find(" 200 "), std::string::npos);
  const auto begin = std::chrono::steady_clock::now();

  server_.stop();
  std::string found;
  boost::system::error_code ignored;
  boost::asio::read(socket, boost::asio::dynamic_buffer(found), ignored);

  EXPECT_EQ(found, "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(HttpServer, AFieldBehindTheLastChunkHasTheHeadersLimit) {
  run();
  const std::string head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + kEnd;
  EXPECT_NE(ask(head + "1\r\nx\r\n0\r\nA: b\r\n\r\n").find("\r\n\r\nx"), std::string::npos);
  EXPECT_NE(ask(head + "0\r\nA: " + std::string(70000, 'y') + "\r\n\r\n").find(" 431 "),
            std::string::npos);
  EXPECT_EQ(handled_, 1);
}

TEST_F(HttpServer, NoticesThatAClientLeavesWhileItsAnswerIsMade) {
  run();
  {
    const std::string bytes = "GET /wait HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n";
    tcp::socket socket = connect();
    boost::asio::write(socket, boost::asio::buffer(bytes));
    while (!is_open_) std::this_thread::yield();
  }
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!open_->is_client_gone() && std::chrono::steady_clock::now() < latest) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(open_->is_client_gone());
}

}  // namespace
}  // namespace hyperslab::test
