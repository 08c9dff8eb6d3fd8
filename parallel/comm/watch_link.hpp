// SPDX-License-Identifier: Apache-2.0
// The watchdog's sockets: TCP over IPv4, frames of one size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "watch_diagnosis.hpp"

namespace hyperslab::comm {

enum class Notice : std::uint8_t {
  hello,    ///< the first on a connection: the sender's nonce
  proof,    ///< the second: the sender knows the secret
  status,   ///< progress of the sender
  leave,    ///< the sender ends
  failure,  ///< the sender ends after an exception
  kill,     ///< end the silent process of rank `rank`, which is on your machine
  end,      ///< _exit
};

struct Frame {
  Notice notice = Notice::status;
  std::array<std::uint8_t, 3> unused{};
  std::int32_t rank = 0;  ///< the sender's, or the one it is about
  Status status;
};
// It is sent byte by byte, so it must have no padding, which nothing has written.
static_assert(std::is_trivially_copyable_v<Frame>);
static_assert(std::has_unique_object_representations_v<Frame>);

/// A message between sessions, in the form that Session describes.
struct Packet {
  Frame frame;
  std::uint64_t number = 0;             ///< counts the sender's frames; 0: a hello
  std::array<std::uint8_t, 16> seal{};  ///< keyed hash of the rest; in a hello the nonce
};
static_assert(std::has_unique_object_representations_v<Packet>);

/// A file descriptor that closes.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    close();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }
  [[nodiscard]] int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
};

/// One connection. Nothing blocks: a packet is dropped if the socket has no room for it.
class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int get() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  void close() { socket_.close(); }
  void send(const Packet& packet);
  /// Reports to the other side that no packet follows.
  void finish();
  /// True if another packet has arrived whole, which `packet` then is; closes if the other side
  /// did.
  [[nodiscard]] bool receive(Packet& packet);

 private:
  Descriptor socket_;
  std::array<char, sizeof(Packet)> in_{};
  std::array<char, sizeof(Packet)> out_{};
  std::size_t in_bytes_ = 0;
  std::size_t out_begin_ = sizeof(Packet);  ///< the bytes from here on are still to be sent
};

/// A socket that accepts connections.
struct Listener {
  Descriptor socket;
  int port = 0;
};
/// `everywhere`: on all interfaces, else on the loopback. Empty if the system refuses.
[[nodiscard]] Listener listen_on(bool everywhere);
/// The next connection that waits, if any; none either if this process may open no more files.
[[nodiscard]] std::optional<Connection> accept_from(const Listener& listener);
/// Addresses of this machine's interfaces that are up, the loopback left out.
[[nodiscard]] std::vector<std::string> own_addresses();
/// The addresses to call a rank at: the loopback if it is `near`, else its addresses `there`
/// without those that the caller's own machine has too. Each host with containers has the same
/// bridge, and at its address any user of the caller's machine could answer.
[[nodiscard]] std::vector<std::string> addresses_to_call(std::vector<std::string> there,
                                                         const std::vector<std::string>& own,
                                                         bool near);

/// A connection that is being made.
class PendingConnection {
 public:
  enum class State : std::uint8_t { waits, made, failed };
  PendingConnection(std::string name, Descriptor socket, int error)
      : name_(std::move(name)), socket_(std::move(socket)), error_(error) {}
  [[nodiscard]] int get() const { return socket_.get(); }
  [[nodiscard]] const std::string& name() const { return name_; }  ///< "10.0.0.1:4711"
  /// Does not block. If it failed, `problem` gives the address and the reason.
  [[nodiscard]] State look(std::string& problem);
  [[nodiscard]] Connection take() { return Connection(std::move(socket_)); }

 private:
  std::string name_;
  Descriptor socket_;
  int error_ = 0;  ///< errno of the start
};
[[nodiscard]] PendingConnection start_connection(const std::string& address, int port);

}  // namespace hyperslab::comm
