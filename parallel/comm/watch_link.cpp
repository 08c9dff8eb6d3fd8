// SPDX-License-Identifier: Apache-2.0
#include "watch_link.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace hyperslab::comm {
namespace {

constexpr int kBacklog = 4096;
constexpr int kConnectMilliseconds = 5000;

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

Descriptor new_socket() {
  return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// A connection that is being made.
struct Attempt {
  std::string address;
  Descriptor socket;
  bool failed = false;
};

/// Starts a connection to an address; errno, 0 where it may come about.
int start(const Attempt& attempt, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, attempt.address.c_str(), &address.sin_addr) != 1) return EINVAL;
  if (::connect(attempt.socket.get(), generic(address), sizeof address) == 0) return 0;
  return errno == EINPROGRESS ? 0 : errno;
}

int outcome_of(const Attempt& attempt) {
  int reason = 0;
  socklen_t length = sizeof reason;
  const int socket = attempt.socket.get();
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &reason, &length) == 0 ? reason : errno;
}

}  // namespace

void Descriptor::close() noexcept {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

void Connection::send(const Frame& frame) {
  if (!is_open()) return;
  const bool idle = out_begin_ == out_.size();
  if (idle) {
    std::memcpy(out_.data(), &frame, sizeof frame);
    out_begin_ = 0;
  }
  const auto flush = [this] {
    const ssize_t sent = ::send(socket_.get(), out_.data() + out_begin_, out_.size() - out_begin_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) out_begin_ += static_cast<std::size_t>(sent);
    return out_begin_ == out_.size();
  };
  if (!flush() || idle) return;
  std::memcpy(out_.data(), &frame, sizeof frame);  // the one before is on its way now
  out_begin_ = 0;
  flush();
}

void Connection::finish() {
  if (is_open()) ::shutdown(socket_.get(), SHUT_WR);
}

bool Connection::receive(Frame& frame) {
  while (is_open()) {
    const ssize_t got = ::recv(socket_.get(), in_.data() + in_bytes_, in_.size() - in_bytes_, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got <= 0) {
      close();
      return false;
    }
    in_bytes_ += static_cast<std::size_t>(got);
    if (in_bytes_ < in_.size()) continue;
    in_bytes_ = 0;
    std::memcpy(&frame, in_.data(), sizeof frame);
    return true;
  }
  return false;
}

Listener listen_on(bool everywhere) {
  Listener listener{new_socket(), 0};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int socket = listener.socket.get();
  const bool listens = ::bind(socket, generic(address), sizeof address) == 0 &&
                       ::listen(socket, kBacklog) == 0 &&
                       ::getsockname(socket, generic(address), &length) == 0;
  if (!listens) return {};
  listener.port = ntohs(address.sin_port);
  return listener;
}

std::optional<Connection> accept_from(const Listener& listener) {
  Descriptor socket(
      ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return std::nullopt;
  return Connection(std::move(socket));
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    found.emplace_back(text.data());
  }
  return found;
}

Connection connect_to(const std::vector<std::string>& addresses, int port, std::string& problem) {
  std::vector<Attempt> attempts;
  const auto fail = [&](Attempt& attempt, int reason) {
    attempt.failed = true;
    problem = attempt.address + ":" + std::to_string(port) + ": " + std::strerror(reason);
  };
  problem = "it has no address";
  for (const std::string& address : addresses) {
    attempts.push_back({address, new_socket()});
    if (const int reason = start(attempts.back(), port)) fail(attempts.back(), reason);
  }
  const double end = now_seconds() + 1e-3 * kConnectMilliseconds;
  while (true) {
    std::vector<pollfd> waiting;
    waiting.reserve(attempts.size());
    for (const Attempt& each : attempts) {
      waiting.push_back({each.failed ? -1 : each.socket.get(), POLLOUT, 0});
    }
    if (std::ranges::all_of(attempts, &Attempt::failed)) break;
    const double left = end - now_seconds();
    if (left <= 0 ||
        ::poll(waiting.data(), waiting.size(), static_cast<int>(1e3 * left) + 1) == 0) {
      problem = attempts.front().address + ":" + std::to_string(port) + ": no answer";
      break;
    }
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      if (attempts[i].failed || waiting[i].revents == 0) continue;
      const int reason = outcome_of(attempts[i]);
      if (reason == 0) return Connection(std::move(attempts[i].socket));
      fail(attempts[i], reason);
    }
  }
  return Connection(Descriptor());
}

}  // namespace hyperslab::comm
