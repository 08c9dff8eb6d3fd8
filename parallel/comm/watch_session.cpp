// SPDX-License-Identifier: Apache-2.0
#include "watch_session.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {
namespace {

constexpr double kCallSeconds = 5;
constexpr double kPollSeconds = 0.05;
constexpr int kMostRefusals = 10;  // a rank may lose its connection to many strangers
constexpr std::string_view kKeyLabel = "hyperslab watchdog 1";

void draw(std::span<std::uint8_t> bytes) {
  if (::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1) return;
  throw Error(ExitCode::internal, "the system gives no random bytes for the watchdog");
}

std::array<std::uint8_t, 32> hmac(std::span<const std::uint8_t> key,
                                  std::span<const std::uint8_t> text) {
  std::array<std::uint8_t, 32> hash{};
  unsigned length = 0;
  const auto* made = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(),
                            text.size(), hash.data(), &length);
  require(made != nullptr && length == hash.size(), "HMAC-SHA256 is not available");
  return hash;
}

template <class T>
void append(std::vector<std::uint8_t>& text, const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
  text.insert(text.end(), bytes, bytes + sizeof value);
}

/// One address that is tried.
struct Attempt {
  std::string address;
  PendingConnection pending;
  Session session;
  int refusals = 0;
  bool failed = false;
};

}  // namespace

Secret Secret::random() {
  Secret secret;
  draw(secret.bytes);
  return secret;
}

std::string Secret::text() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Secret Secret::of_text(const std::string& text) {
  Secret secret;
  require(text.size() == 2 * secret.bytes.size(), "a secret of another length");
  for (std::size_t i = 0; i < secret.bytes.size(); ++i) {
    secret.bytes[i] = static_cast<std::uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return secret;
}

Session::Session(Connection link, const Secret& secret, int own_rank, int peer_rank, bool is_client)
    : link_(std::move(link)),
      secret_(secret),
      own_rank_(own_rank),
      peer_rank_(peer_rank),
      is_client_(is_client) {
  draw(nonce_);
  Packet hello;
  hello.frame.notice = Notice::hello;
  hello.frame.rank = own_rank;
  hello.seal = nonce_;
  link_.send(hello);
}

/// The peer's nonce makes the key. The client proves itself first, so that the monitor sends
/// strangers nothing.
void Session::greet(const Packet& hello) {
  const bool expected = hello.frame.notice == Notice::hello && hello.number == 0 &&
                        hello.frame.rank >= 0 && hello.frame.rank != own_rank_ &&
                        (!is_client_ || hello.frame.rank == peer_rank_);
  if (!expected) return link_.close();
  peer_rank_ = hello.frame.rank;
  std::vector<std::uint8_t> text(kKeyLabel.begin(), kKeyLabel.end());
  append(text, is_client_ ? own_rank_ : peer_rank_);
  append(text, is_client_ ? peer_rank_ : own_rank_);
  append(text, is_client_ ? nonce_ : hello.seal);
  append(text, is_client_ ? hello.seal : nonce_);
  key_ = hmac(secret_.bytes, text);
  has_key_ = true;
  if (!is_client_) return;
  Packet proof;
  proof.frame.notice = Notice::proof;
  proof.frame.rank = own_rank_;
  seal(proof);
  link_.send(proof);
}

Session::Hash Session::hash_of(const Packet& packet, bool from_client) const {
  std::vector<std::uint8_t> text;
  text.reserve(sizeof packet + 1);
  append(text, static_cast<std::uint8_t>(from_client ? 1 : 0));
  append(text, packet.number);
  append(text, packet.frame);
  return hmac(key_, text);
}

void Session::seal(Packet& packet) {
  packet.number = ++sent_;
  const Hash hash = hash_of(packet, is_client_);
  std::copy_n(hash.begin(), packet.seal.size(), packet.seal.begin());
}

bool Session::is_genuine(const Packet& packet) const {
  const Hash hash = hash_of(packet, !is_client_);
  return packet.number > received_ &&
         ::CRYPTO_memcmp(hash.data(), packet.seal.data(), packet.seal.size()) == 0;
}

void Session::send(const Frame& frame) {
  if (!is_proven_ || !is_open()) return;
  Packet packet;
  packet.frame = frame;
  seal(packet);
  link_.send(packet);
}

bool Session::receive(Frame& frame) {
  Packet packet;
  while (link_.receive(packet)) {
    if (!has_key_) {
      greet(packet);
      continue;
    }
    if (!is_genuine(packet)) {
      link_.close();
      return false;
    }
    received_ = packet.number;
    const bool was_proven = std::exchange(is_proven_, true);
    if (packet.frame.notice != Notice::proof) {
      frame = packet.frame;
      return true;
    }
    if (was_proven || is_client_) continue;
    Frame answer;
    answer.notice = Notice::proof;
    answer.rank = own_rank_;
    send(answer);
  }
  return false;
}

Session call_monitor(const std::vector<std::string>& addresses, int port, const Secret& secret,
                     int own_rank, int peer_rank, std::string& problem) {
  std::vector<Attempt> attempts;
  attempts.reserve(addresses.size());
  problem = "it has no address";
  for (const std::string& address : addresses) {
    attempts.push_back({address, start_connection(address, port),
                        Session::of_client(Connection(Descriptor()), secret, own_rank, peer_rank)});
  }
  const auto advance = [&](Attempt& attempt) {
    if (!attempt.session.is_open()) {
      const auto state = attempt.pending.look(problem);
      attempt.failed = state == PendingConnection::State::failed;
      if (state != PendingConnection::State::made) return;
      attempt.session = Session::of_client(attempt.pending.take(), secret, own_rank, peer_rank);
    }
    Frame ignored;  // statuses come again
    while (attempt.session.receive(ignored)) {
    }
    if (attempt.session.is_open()) return;
    attempt.failed = ++attempt.refusals >= kMostRefusals;
    if (!attempt.failed) attempt.pending = start_connection(attempt.address, port);
    problem = attempt.pending.name() + ": who answers there is not rank " +
              std::to_string(peer_rank) + " of this job";
  };
  const double end = now_seconds() + kCallSeconds;
  while (!std::ranges::all_of(attempts, &Attempt::failed)) {
    std::vector<pollfd> waiting;
    waiting.reserve(attempts.size());
    for (const Attempt& each : attempts) {
      const bool connects = !each.session.is_open();
      const int socket = connects ? each.pending.get() : each.session.get();
      waiting.push_back(
          {each.failed ? -1 : socket, static_cast<short>(connects ? POLLOUT : POLLIN), 0});
    }
    (void)::poll(waiting.data(), waiting.size(), static_cast<int>(1e3 * kPollSeconds));
    for (Attempt& each : attempts) {
      if (!each.failed) advance(each);
      if (each.session.is_proven() && each.session.is_open()) return std::move(each.session);
    }
    if (now_seconds() < end) continue;
    problem = attempts.front().pending.name() + ": no answer";
    break;
  }
  return Session::of_client(Connection(Descriptor()), secret, own_rank, peer_rank);
}

}  // namespace hyperslab::comm
