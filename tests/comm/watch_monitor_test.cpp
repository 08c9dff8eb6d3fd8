// SPDX-License-Identifier: Apache-2.0
// Ranks and strangers that call a monitor at real sockets.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "watch_clients.hpp"

namespace hyperslab::test {
namespace {

using comm::Descriptor;
using comm::Frame;
using comm::Packet;
using comm::Secret;
using comm::Session;

constexpr int kClient = 3;
constexpr int kMonitor = 0;

/// Listens at an address of the loopback, at `port` or, if it is 0, at a free one.
comm::Listener listen_at(const char* address, int port) {
  comm::Listener listener{Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), port};
  const int yes = 1;
  ::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof target;
  auto* const generic = reinterpret_cast<sockaddr*>(&target);
  const bool listens = ::inet_pton(AF_INET, address, &target.sin_addr) == 1 &&
                       ::bind(listener.socket.get(), generic, sizeof target) == 0 &&
                       ::listen(listener.socket.get(), 16) == 0 &&
                       ::getsockname(listener.socket.get(), generic, &length) == 0;
  if (!listens) return {};
  listener.port = ntohs(target.sin_port);
  return listener;
}

/// Two addresses with one port that is free at both.
std::array<comm::Listener, 2> listen_twice() {
  for (int i = 0; i < 100; ++i) {
    std::array<comm::Listener, 2> both{listen_at("127.0.0.1", 0), comm::Listener{}};
    both[1] = listen_at("127.0.0.2", both[0].port);
    if (both[1].socket) return both;
  }
  return {};
}

/// A monitor that serves listeners from a thread of its own, and notes what it concludes.
class Server : private comm::Clients::Owner {
 public:
  template <class... Listeners>
  explicit Server(Secret secret, Listeners&&... listeners) : secret_(secret) {
    (listeners_.push_back(std::forward<Listeners>(listeners)), ...);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() override { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;
  void stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  [[nodiscard]] int port() const { return listeners_.front().port; }
  [[nodiscard]] int accepted() const { return accepted_; }
  [[nodiscard]] int proven() const { return proven_; }
  [[nodiscard]] int lost() const { return lost_; }

 private:
  void on_arrival(int /*rank*/) override { ++proven_; }
  [[nodiscard]] bool on_frame(int /*rank*/, const Frame& /*frame*/) override { return true; }
  void on_loss(int /*rank*/) override { ++lost_; }

  void serve() {
    while (!ends_) {
      for (comm::Listener& listener : listeners_) {
        if (auto link = comm::accept_from(listener)) {
          clients_.add(Session::of_monitor(std::move(*link), secret_, kMonitor));
          ++accepted_;
        }
      }
      clients_.receive(*this);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Secret secret_;
  std::vector<comm::Listener> listeners_;
  comm::Clients clients_{8};
  std::atomic<bool> ends_ = false;
  std::atomic<int> accepted_ = 0;
  std::atomic<int> proven_ = 0;
  std::atomic<int> lost_ = 0;
  std::thread thread_;
};

template <class Condition>
bool comes_true(const Condition& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

TEST(CallingAMonitor, TakesWhoProvesItselfNotWhoAnswersFirst) {
  const Secret secret = Secret::random();
  auto listeners = listen_twice();
  ASSERT_TRUE(listeners[1].socket);
  const Server stranger(Secret::random(), std::move(listeners[0]));
  const Server monitor(secret, std::move(listeners[1]));
  std::string problem;

  const Session session = comm::call_monitor({"127.0.0.1", "127.0.0.2"}, stranger.port(), secret,
                                             kClient, kMonitor, problem);

  EXPECT_TRUE(session.is_open()) << problem;
  EXPECT_TRUE(session.is_proven());
  EXPECT_EQ(monitor.accepted(), 1);
}

/// A host with two networks: the rank proves itself on both and closes one.
TEST(CallingAMonitor, AtTwoAddressesLosesNoRank) {
  const Secret secret = Secret::random();
  for (int i = 0; i < 20; ++i) {
    auto listeners = listen_twice();
    ASSERT_TRUE(listeners[1].socket);
    const Server monitor(secret, std::move(listeners[0]), std::move(listeners[1]));
    std::string problem;
    {
      const Session session = comm::call_monitor({"127.0.0.1", "127.0.0.2"}, monitor.port(), secret,
                                                 kClient, kMonitor, problem);
      ASSERT_TRUE(session.is_open()) << problem;
      ASSERT_TRUE(comes_true([&] { return monitor.accepted() == 2; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(monitor.lost(), 0);
    }
    EXPECT_TRUE(comes_true([&] { return monitor.lost() == 1; }));
    EXPECT_GE(monitor.proven(), 1);
  }
}

TEST(ManyStrangers, DoNotKeepARankOut) {
  const Secret secret = Secret::random();
  const Server monitor(secret, comm::listen_on(false));
  std::vector<comm::PendingConnection> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(comm::start_connection("127.0.0.1", monitor.port()));
  }
  std::string problem;

  const Session session =
      comm::call_monitor({"127.0.0.1"}, monitor.port(), secret, kClient, kMonitor, problem);

  EXPECT_TRUE(session.is_proven()) << problem;
  ASSERT_TRUE(comes_true([&] { return monitor.accepted() >= 101; }));
  EXPECT_EQ(monitor.lost(), 0);
}

/// Connects to the loopback and sends what is no packet of ours; the system may take less of it.
Descriptor sends(int port, const std::string& bytes) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in target = {};
  target.sin_family = AF_INET;
  target.sin_port = htons(static_cast<std::uint16_t>(port));
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&target), sizeof target), 0);
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return socket;
}

TEST(ManyStrangers, WhoSendGarbageEndNothing) {
  const Secret secret = Secret::random();
  const Server monitor(secret, comm::listen_on(false));
  std::mt19937 draw(16);
  std::string noise(1 << 20, '\0');
  for (char& byte : noise) byte = static_cast<char>(draw());
  std::vector<Descriptor> strangers;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: monitor\r\n\r\n"), std::string(4096, '\0'),
        std::string(4096, '\xff'), std::string("x"), noise.substr(0, sizeof(Packet)), noise}) {
    for (int i = 0; i < 10; ++i) strangers.push_back(sends(monitor.port(), bytes));
  }
  ASSERT_TRUE(comes_true([&] { return monitor.accepted() == 60; }));
  std::string problem;

  const Session session =
      comm::call_monitor({"127.0.0.1"}, monitor.port(), secret, kClient, kMonitor, problem);

  EXPECT_TRUE(session.is_proven()) << problem;
  ASSERT_TRUE(comes_true([&] { return monitor.accepted() == 61; }));
  EXPECT_TRUE(comes_true([&] { return monitor.proven() == 1; }));
  EXPECT_EQ(monitor.lost(), 0);
}

TEST(CallingAMonitor, SaysThatAStrangerAnswers) {
  const Server stranger(Secret::random(), comm::listen_on(false));
  std::string problem;

  const Session session = comm::call_monitor({"127.0.0.1"}, stranger.port(), Secret::random(),
                                             kClient, kMonitor, problem);

  EXPECT_FALSE(session.is_open());
  EXPECT_THAT(problem, testing::HasSubstr("not rank 0 of this job"));
}

TEST(CallingAMonitor, SaysWhyItDoesNot) {
  const comm::Listener bound{Descriptor(::socket(AF_INET, SOCK_STREAM, 0)), 0};
  sockaddr_in target = {};  // a port that is taken and at which no one listens
  target.sin_family = AF_INET;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof target;
  ASSERT_EQ(::bind(bound.socket.get(), reinterpret_cast<sockaddr*>(&target), sizeof target), 0);
  ASSERT_EQ(::getsockname(bound.socket.get(), reinterpret_cast<sockaddr*>(&target), &length), 0);
  const int port = ntohs(target.sin_port);
  const auto problem_at = [&](const std::vector<std::string>& addresses) {
    std::string problem;
    EXPECT_FALSE(comm::call_monitor(addresses, port, {}, kClient, kMonitor, problem).is_open());
    return problem;
  };

  EXPECT_THAT(problem_at({"127.0.0.1"}), testing::AllOf(testing::HasSubstr("127.0.0.1:"),
                                                        testing::HasSubstr("Connection refused")));
  EXPECT_THAT(problem_at({"no address"}), testing::HasSubstr("Invalid argument"));
  EXPECT_EQ(problem_at({}), "it has no address");
}

TEST(AddressesToCall, LeaveOutWhatTheCallerHasToo) {
  using testing::ElementsAre;
  const std::vector<std::string> bridge_and_own = {"172.17.0.1", "10.77.0.2"};

  EXPECT_THAT(comm::addresses_to_call({"172.17.0.1", "10.77.0.1"}, bridge_and_own, false),
              ElementsAre("10.77.0.1"));
  EXPECT_THAT(comm::addresses_to_call({"10.77.0.2"}, bridge_and_own, true),
              ElementsAre("127.0.0.1"));
}

}  // namespace
}  // namespace hyperslab::test
