// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "watch_clients.hpp"

namespace hyperslab::test {
namespace {

using comm::Connection;
using comm::Descriptor;
using comm::Frame;
using comm::Notice;
using comm::Packet;
using comm::Secret;
using comm::Session;

constexpr int kClient = 3;
constexpr int kMonitor = 0;

/// Both ends of a connection, on which nothing blocks.
std::array<Connection, 2> connected() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {Connection(Descriptor(ends[0])), Connection(Descriptor(ends[1]))};
}

Frame status_of(int rank, std::int64_t step) {
  Frame frame;
  frame.notice = Notice::status;
  frame.rank = rank;
  frame.status.step = step;
  return frame;
}

/// What the session has to give, going on with its handshake.
std::vector<Frame> frames_of(Session& session) {
  std::vector<Frame> all;
  Frame frame;
  while (session.receive(frame)) all.push_back(frame);
  return all;
}

/// Hands packets from one connection to another; returns them.
std::vector<Packet> pass_on(Connection& from, Connection& to) {
  std::vector<Packet> all;
  Packet packet;
  while (from.receive(packet)) {
    all.push_back(packet);
    to.send(packet);
  }
  return all;
}

class WatchSession : public testing::Test {
 protected:
  void shake_hands() {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(frames_of(client_).empty());
      EXPECT_TRUE(frames_of(monitor_).empty());
    }
  }

  Secret secret_ = Secret::random();
  std::array<Connection, 2> ends_ = connected();
  Session client_ = Session::of_client(std::move(ends_[0]), secret_, kClient, kMonitor);
  Session monitor_ = Session::of_monitor(std::move(ends_[1]), secret_, kMonitor);
};

TEST_F(WatchSession, BothProveThemselvesAndThenTalk) {
  client_.send(status_of(kClient, 1));  // nothing leaves so early
  shake_hands();
  ASSERT_TRUE(client_.is_proven());
  ASSERT_TRUE(monitor_.is_proven());
  EXPECT_EQ(monitor_.peer_rank(), kClient);

  client_.send(status_of(kClient, 7));
  monitor_.send(status_of(kMonitor, 8));

  const auto to_monitor = frames_of(monitor_);
  const auto to_client = frames_of(client_);
  ASSERT_EQ(to_monitor.size(), 1);
  EXPECT_EQ(to_monitor[0].status.step, 7);
  ASSERT_EQ(to_client.size(), 1);
  EXPECT_EQ(to_client[0].status.step, 8);
}

TEST_F(WatchSession, TextOfASecretIsTheSecret) {
  EXPECT_EQ(Secret::of_text(secret_.text()).bytes, secret_.bytes);
  EXPECT_NE(Secret::random().bytes, secret_.bytes);
}

TEST(WatchSessions, WithAnotherSecretNothingIsToldOrBelieved) {
  auto ends = connected();
  auto client = Session::of_client(std::move(ends[0]), Secret::random(), kClient, kMonitor);
  auto monitor = Session::of_monitor(std::move(ends[1]), Secret::random(), kMonitor);

  for (int i = 0; i < 3; ++i) {
    monitor.send(status_of(kMonitor, 5));
    EXPECT_TRUE(frames_of(client).empty());
    EXPECT_TRUE(frames_of(monitor).empty());
  }

  EXPECT_FALSE(monitor.is_open());
  EXPECT_EQ(monitor.peer_rank(), -1);
  EXPECT_FALSE(client.is_proven());
}

TEST(WatchSessions, AStrangerWhoAnswersGetsNoSecretAndIsNotObeyed) {
  const Secret secret = Secret::random();
  auto ends = connected();
  auto client = Session::of_client(std::move(ends[0]), secret, kClient, kMonitor);
  Packet hello;
  hello.frame.notice = Notice::hello;
  hello.frame.rank = kMonitor;
  Packet order;
  order.frame.notice = Notice::end;
  order.number = 1;
  ends[1].send(hello);

  EXPECT_TRUE(frames_of(client).empty());
  client.send(status_of(kClient, 5));
  std::vector<Packet> told;
  for (Packet packet; ends[1].receive(packet);) told.push_back(packet);
  ends[1].send(order);

  EXPECT_TRUE(frames_of(client).empty());
  EXPECT_FALSE(client.is_open());
  ASSERT_EQ(told.size(), 2);  // the hello and the proof, which fits these nonces alone
  for (const Packet& packet : told) {
    EXPECT_EQ(packet.frame.status.step, 0);
    EXPECT_EQ(std::search(packet.seal.begin(), packet.seal.end(), secret.bytes.begin(),
                          secret.bytes.begin() + 8),
              packet.seal.end());
  }
}

/// Someone sits between two ranks and hands their packets on.
class PassedOn : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 4; ++i) {
      pass_on(left_[1], right_[0]);
      (void)frames_of(monitor_);
      pass_on(right_[0], left_[1]);
      (void)frames_of(client_);
    }
    ASSERT_TRUE(client_.is_proven() && monitor_.is_proven());
  }

  Secret secret_ = Secret::random();
  std::array<Connection, 2> left_ = connected();
  std::array<Connection, 2> right_ = connected();
  Session client_ = Session::of_client(std::move(left_[0]), secret_, kClient, kMonitor);
  Session monitor_ = Session::of_monitor(std::move(right_[1]), secret_, kMonitor);
};

TEST_F(PassedOn, AChangedFrameEndsTheConnection) {
  monitor_.send(status_of(kMonitor, 5));
  Packet packet;
  ASSERT_TRUE(right_[0].receive(packet));
  packet.frame.notice = Notice::end;
  left_[1].send(packet);

  EXPECT_TRUE(frames_of(client_).empty());
  EXPECT_FALSE(client_.is_open());
}

TEST_F(PassedOn, AFrameCountsOnce) {
  client_.send(status_of(kClient, 5));
  const auto sent = pass_on(left_[1], right_[0]);
  ASSERT_EQ(sent.size(), 1);
  EXPECT_EQ(frames_of(monitor_).size(), 1);
  right_[0].send(sent[0]);

  EXPECT_TRUE(frames_of(monitor_).empty());
  EXPECT_FALSE(monitor_.is_open());
}

TEST_F(PassedOn, AFrameDoesNotComeBack) {
  client_.send(status_of(kClient, 5));
  Packet packet;
  ASSERT_TRUE(left_[1].receive(packet));
  packet.number += 100;
  left_[1].send(packet);

  EXPECT_TRUE(frames_of(client_).empty());
  EXPECT_FALSE(client_.is_open());
}

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
