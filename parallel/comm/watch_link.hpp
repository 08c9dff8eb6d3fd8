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

#include "watch_verdict.hpp"

namespace hyperslab::comm {

enum class Notice : std::uint8_t {
  hello,     ///< the first on a connection: who calls, with the job's token
  status,    ///< how far the sender is
  farewell,  ///< the sender leaves
  failure,   ///< the sender leaves behind an exception
  kill,      ///< end the silent process of rank `rank`, which is on your machine
  end,       ///< _exit
};

struct Frame {
  Notice notice = Notice::status;
  std::int32_t rank = 0;    ///< the sender's, or whom it is about
  std::uint64_t token = 0;  ///< of the job
  Status status;
};
static_assert(std::is_trivially_copyable_v<Frame>);

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

/// One connection. Nothing blocks: a frame for which there is no place is left out.
class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int get() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  void close() { socket_.close(); }
  void send(const Frame& frame);
  /// Says that no frame follows.
  void finish();
  /// Whether another frame has arrived whole, which `frame` then is; closes where the other side
  /// did.
  [[nodiscard]] bool receive(Frame& frame);

 private:
  Descriptor socket_;
  std::array<char, sizeof(Frame)> in_{};
  std::array<char, sizeof(Frame)> out_{};
  std::size_t in_bytes_ = 0;
  std::size_t out_begin_ = sizeof(Frame);  ///< what lies behind is still to be sent
};

/// Where connections come in.
struct Listener {
  Descriptor socket;
  int port = 0;
};
/// `everywhere`: on all interfaces, else on the loopback. Empty where the system refuses.
[[nodiscard]] Listener listen_on(bool everywhere);
/// The next connection that waits, if any.
[[nodiscard]] std::optional<Connection> accept_from(const Listener& listener);
/// Addresses of this machine's interfaces that are up, the loopback left out.
[[nodiscard]] std::vector<std::string> own_addresses();
/// Tries all addresses at once, for some seconds. Closed where none answers, with the last reason
/// in `problem`.
[[nodiscard]] Connection connect_to(const std::vector<std::string>& addresses, int port,
                                    std::string& problem);

}  // namespace hyperslab::comm
