// SPDX-License-Identifier: Apache-2.0
// Two ranks of one job on a connection that others may have made or sit in: each proves that it
// knows the job's secret, and every frame carries a keyed hash.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "watch_link.hpp"

namespace hyperslab::comm {

/// A secret of the ranks of a job: rank 0 draws it, MPI brings it to the others.
struct Secret {
  std::array<std::uint8_t, 32> bytes{};
  [[nodiscard]] static Secret random();
  /// Hexadecimal digits, and back.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] static Secret of_text(const std::string& text);
};

/// The watchdog's frames over one connection. Both sides first send a hello with a nonce: random
/// bytes and their rank, which may be known. From both nonces, both ranks and the secret follows
/// the key of this connection; every later frame has a number and an HMAC-SHA256 (RFC 2104) under
/// that key, of which 128 bits travel. A frame with another hash, from the other direction, out of
/// order or seen before closes the connection. So a stranger learns and achieves nothing, also one
/// who passes the bytes of two ranks on.
class Session {
 public:
  /// The side that connected, and knows whom it calls.
  static Session of_client(Connection link, const Secret& secret, int own_rank, int peer_rank) {
    return {std::move(link), secret, own_rank, peer_rank, true};
  }
  /// The side that accepted; the peer's rank is -1 until it is proven.
  static Session of_monitor(Connection link, const Secret& secret, int own_rank) {
    return {std::move(link), secret, own_rank, -1, false};
  }

  [[nodiscard]] int get() const { return link_.get(); }
  [[nodiscard]] bool is_open() const { return link_.is_open(); }
  /// The peer has proven that it is a rank of this job.
  [[nodiscard]] bool is_proven() const { return is_proven_; }
  [[nodiscard]] int peer_rank() const { return is_proven_ ? peer_rank_ : -1; }
  void close() { link_.close(); }
  void finish() { link_.finish(); }
  /// Nothing leaves before the peer has proven itself.
  void send(const Frame& frame);
  /// Goes on with the bytes that have arrived. Returns true if they hold another frame of the
  /// proven peer, which `frame` then is.
  [[nodiscard]] bool receive(Frame& frame);

 private:
  using Hash = std::array<std::uint8_t, 32>;

  Session(Connection link, const Secret& secret, int own_rank, int peer_rank, bool is_client);
  void greet(const Packet& hello);
  void seal(Packet& packet);
  [[nodiscard]] bool is_genuine(const Packet& packet) const;
  [[nodiscard]] Hash hash_of(const Packet& packet, bool from_client) const;

  Connection link_;
  Secret secret_;
  std::array<std::uint8_t, 16> nonce_{};
  Hash key_{};
  int own_rank_;
  int peer_rank_;
  bool is_client_;
  bool has_key_ = false;
  bool is_proven_ = false;
  std::uint64_t sent_ = 0;      ///< number of the newest frame that was sent
  std::uint64_t received_ = 0;  ///< number of the newest frame that was received
};

/// Calls rank `peer_rank` at all addresses at once, for some seconds; the first that proves itself
/// is kept. Closed if none does, with the last reason in `problem`.
[[nodiscard]] Session call_monitor(const std::vector<std::string>& addresses, int port,
                                   const Secret& secret, int own_rank, int peer_rank,
                                   std::string& problem);

}  // namespace hyperslab::comm
