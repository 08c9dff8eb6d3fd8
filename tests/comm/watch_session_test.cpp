// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

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

constexpr int kSessionClient = 3;
constexpr int kSessionMonitor = 0;

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
  Session client_ =
      Session::of_client(std::move(ends_[0]), secret_, kSessionClient, kSessionMonitor);
  Session monitor_ = Session::of_monitor(std::move(ends_[1]), secret_, kSessionMonitor);
};

TEST_F(WatchSession, BothProveThemselvesAndThenTalk) {
  client_.send(status_of(kSessionClient, 1));  // nothing leaves so early
  shake_hands();
  ASSERT_TRUE(client_.is_proven());
  ASSERT_TRUE(monitor_.is_proven());
  EXPECT_EQ(monitor_.peer_rank(), kSessionClient);

  client_.send(status_of(kSessionClient, 7));
  monitor_.send(status_of(kSessionMonitor, 8));

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

TEST(WatchSessions, WithAnotherSecretNothingIsReportedOrBelieved) {
  auto ends = connected();
  auto client =
      Session::of_client(std::move(ends[0]), Secret::random(), kSessionClient, kSessionMonitor);
  auto monitor = Session::of_monitor(std::move(ends[1]), Secret::random(), kSessionMonitor);

  for (int i = 0; i < 3; ++i) {
    monitor.send(status_of(kSessionMonitor, 5));
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
  auto client = Session::of_client(std::move(ends[0]), secret, kSessionClient, kSessionMonitor);
  Packet hello;
  hello.frame.notice = Notice::hello;
  hello.frame.rank = kSessionMonitor;
  Packet order;
  order.frame.notice = Notice::end;
  order.number = 1;
  ends[1].send(hello);

  EXPECT_TRUE(frames_of(client).empty());
  client.send(status_of(kSessionClient, 5));
  std::vector<Packet> reported;
  for (Packet packet; ends[1].receive(packet);) reported.push_back(packet);
  ends[1].send(order);

  EXPECT_TRUE(frames_of(client).empty());
  EXPECT_FALSE(client.is_open());
  ASSERT_EQ(reported.size(), 2);  // the hello and the proof, which fits these nonces alone
  for (const Packet& packet : reported) {
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
  Session client_ =
      Session::of_client(std::move(left_[0]), secret_, kSessionClient, kSessionMonitor);
  Session monitor_ = Session::of_monitor(std::move(right_[1]), secret_, kSessionMonitor);
};

TEST_F(PassedOn, AChangedFrameEndsTheConnection) {
  monitor_.send(status_of(kSessionMonitor, 5));
  Packet packet;
  ASSERT_TRUE(right_[0].receive(packet));
  packet.frame.notice = Notice::end;
  left_[1].send(packet);

  EXPECT_TRUE(frames_of(client_).empty());
  EXPECT_FALSE(client_.is_open());
}

TEST_F(PassedOn, AFrameCountsOnce) {
  client_.send(status_of(kSessionClient, 5));
  const auto sent = pass_on(left_[1], right_[0]);
  ASSERT_EQ(sent.size(), 1);
  EXPECT_EQ(frames_of(monitor_).size(), 1);
  right_[0].send(sent[0]);

  EXPECT_TRUE(frames_of(monitor_).empty());
  EXPECT_FALSE(monitor_.is_open());
}

TEST_F(PassedOn, AFrameDoesNotComeBack) {
  client_.send(status_of(kSessionClient, 5));
  Packet packet;
  ASSERT_TRUE(left_[1].receive(packet));
  packet.number += 100;
  left_[1].send(packet);

  EXPECT_TRUE(frames_of(client_).empty());
  EXPECT_FALSE(client_.is_open());
}

}  // namespace
}  // namespace hyperslab::test
