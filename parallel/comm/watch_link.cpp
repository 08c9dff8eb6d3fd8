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

sockaddr* generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }

Descriptor new_socket() {
  return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

}  // namespace

void Descriptor::close() noexcept {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

void Connection::send(const Packet& packet) {
  if (!is_open()) return;
  const bool idle = out_begin_ == out_.size();
  if (idle) {
    std::memcpy(out_.data(), &packet, sizeof packet);
    out_begin_ = 0;
  }
  const auto flush = [this] {
    const ssize_t sent = ::send(socket_.get(), out_.data() + out_begin_, out_.size() - out_begin_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) out_begin_ += static_cast<std::size_t>(sent);
    return out_begin_ == out_.size();
  };
  if (!flush() || idle) return;
  std::memcpy(out_.data(), &packet, sizeof packet);  // the one before is on its way now
  out_begin_ = 0;
  flush();
}

void Connection::finish() {
  if (is_open()) ::shutdown(socket_.get(), SHUT_WR);
}

bool Connection::receive(Packet& packet) {
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
    std::memcpy(&packet, in_.data(), sizeof packet);
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

std::vector<std::string> addresses_to_call(std::vector<std::string> there,
                                           const std::vector<std::string>& own, bool near) {
  if (near) return {"127.0.0.1"};
  std::erase_if(there,
                [&](const std::string& each) { return std::ranges::find(own, each) != own.end(); });
  return there;
}

PendingConnection start_connection(const std::string& address, int port) {
  const std::string name = address + ":" + std::to_string(port);
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, address.c_str(), &target.sin_addr) != 1) {
    return {name, Descriptor(), EINVAL};
  }
  Descriptor socket = new_socket();
  if (!socket) return {name, Descriptor(), errno};
  const bool starts = ::connect(socket.get(), generic(target), sizeof target) == 0;
  return {name, std::move(socket), starts || errno == EINPROGRESS ? 0 : errno};
}

PendingConnection::State PendingConnection::look(std::string& problem) {
  pollfd waiting = {socket_.get(), POLLOUT, 0};
  int reason = error_;
  if (reason == 0) {
    if (::poll(&waiting, 1, 0) == 0) return State::waits;
    socklen_t length = sizeof reason;
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &reason, &length) != 0) reason = errno;
  }
  if (reason == 0) return State::made;
  problem = name_ + ": " + std::strerror(reason);
  return State::failed;
}

}  // namespace hyperslab::comm
