// SPDX-License-Identifier: Apache-2.0
#include "watch_link.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace hyperslab::test {
namespace {

using comm::Connection;
using comm::Notice;
using comm::Packet;

void wait_for_input(int descriptor) {
  pollfd waiting = {descriptor, POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 5000), 1);
}

Packet packet_of(std::int32_t rank) {
  Packet packet;
  packet.frame.notice = Notice::status;
  packet.frame.rank = rank;
  packet.frame.status.step = 100 + rank;
  return packet;
}

/// Both ends of a connection over every interface.
class WatchLink : public testing::Test {
 protected:
  void SetUp() override {
    std::string problem;
    auto pending = comm::start_connection("127.0.0.1", listener_.port);
    wait_for_input(listener_.socket.get());
    ASSERT_EQ(pending.look(problem), comm::PendingConnection::State::made) << problem;
    caller_ = pending.take();
    auto accepted = comm::accept_from(listener_);
    ASSERT_TRUE(accepted.has_value());
    called_ = std::move(*accepted);
  }

  comm::Listener listener_ = comm::listen_on(true);
  Connection caller_{comm::Descriptor()};
  Connection called_{comm::Descriptor()};
  Packet found_;
};

TEST_F(WatchLink, PacketsComeWholeAndInOrder) {
  EXPECT_FALSE(called_.receive(found_));
  for (int i = 0; i < 3; ++i) caller_.send(packet_of(i));

  for (int i = 0; i < 3; ++i) {
    wait_for_input(called_.get());
    ASSERT_TRUE(called_.receive(found_));
    EXPECT_EQ(found_.frame.rank, i);
    EXPECT_EQ(found_.frame.status.step, 100 + i);
  }
  EXPECT_FALSE(called_.receive(found_));
  EXPECT_TRUE(called_.is_open());
}

TEST_F(WatchLink, APartOfAPacketWaitsForItsRest) {
  const Packet sent = packet_of(5);
  const auto* bytes = reinterpret_cast<const char*>(&sent);
  constexpr std::size_t kFirst = 11;
  ::send(caller_.get(), bytes, kFirst, 0);
  wait_for_input(called_.get());
  const bool early = called_.receive(found_);
  ::send(caller_.get(), bytes + kFirst, sizeof sent - kFirst, 0);
  wait_for_input(called_.get());

  EXPECT_FALSE(early);
  EXPECT_TRUE(called_.receive(found_));
  EXPECT_EQ(found_.frame.rank, 5);
}

TEST_F(WatchLink, WhatWasSaidBeforeTheEndArrives) {
  caller_.send(packet_of(7));
  caller_.finish();
  caller_.close();
  wait_for_input(called_.get());

  EXPECT_TRUE(called_.receive(found_));
  EXPECT_EQ(found_.frame.rank, 7);
  EXPECT_FALSE(called_.receive(found_));
  EXPECT_FALSE(called_.is_open());
}

TEST_F(WatchLink, NothingBlocksIfNothingIsRead) {
  constexpr int kMany = 100'000;  // tens of MB
  for (int i = 0; i < kMany; ++i) caller_.send(packet_of(i));

  int before = -1;
  int received = 0;
  while (wait_for_input(called_.get()), called_.receive(found_)) {
    EXPECT_GT(found_.frame.rank, before);
    EXPECT_EQ(found_.frame.status.step, 100 + found_.frame.rank);  // never parts of two packets
    before = found_.frame.rank;
    ++received;
    if (found_.frame.rank == kMany) break;
    caller_.send(packet_of(kMany));
  }
  EXPECT_EQ(before, kMany);
  EXPECT_LT(received, kMany);
}

TEST(Connecting, AddressesAreNotTheLoopback) {
  EXPECT_THAT(comm::own_addresses(), testing::Each(testing::Not(testing::StartsWith("127."))));
}

}  // namespace
}  // namespace hyperslab::test
