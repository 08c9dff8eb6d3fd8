// SPDX-License-Identifier: Apache-2.0
// One connection of the server, from its first byte to its last one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cstddef>
#include <functional>
#include <set>

#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

/// The state that all connections of a server share. The thread that runs `io` alone uses it.
struct HttpConnections {
  boost::asio::io_context& io;
  HttpLimits limits;
  HttpServer::Handler handler;
  HttpServer::Refusal refusal;
  std::function<void()> on_close = {};  ///< after each connection; does not throw

  std::size_t open = 0;
  std::set<boost::beast::tcp_stream*> idle =
      {};                    ///< those that wait for a request, or for the rest of one
  bool is_stopping = false;  ///< no further request is read

  /// Wakes those that wait for a request: they end if is_stopping.
  void wake_idle();
};

/// Takes a connection over. Every failure of it is logged in one line, and ends it alone. `all`
/// must outlive it.
void start_connection(HttpConnections& all, boost::asio::ip::tcp::socket socket);

}  // namespace hyperslab::serve
