// SPDX-License-Identifier: Apache-2.0
#include "watch_link.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace hyperslab::test {
namespace {

using comm::Connection;
using comm::Frame;
using comm::Notice;

void wait_for_input(int descriptor) {
  pollfd waiting = {descriptor, POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 5000), 1);
}

Frame frame_of(std::int32_t rank) {
  Frame frame;
  frame.notice = Notice::status;
  frame.rank = rank;
  frame.status.step = 100 + rank;
  return frame;
}

/// Both ends of a connection over every interface.
class WatchLink : public testing::Test {
 protected:
  void SetUp() override {
    std::string problem;
    caller_ = comm::connect_to({"no address", "127.0.0.1"}, listener_.port, problem);
    ASSERT_TRUE(caller_.is_open()) << problem;
    wait_for_input(listener_.socket.get());
    auto accepted = comm::accept_from(listener_);
    ASSERT_TRUE(accepted.has_value());
    called_ = std::move(*accepted);
  }

  comm::Listener listener_ = comm::listen_on(true);
  Connection caller_{comm::Descriptor()};
  Connection called_{comm::Descriptor()};
  Frame found_;
};

TEST_F(WatchLink, FramesComeWholeAndInOrder) {
  EXPECT_FALSE(called_.receive(found_));
  for (int i = 0; i < 3; ++i) caller_.send(frame_of(i));

  for (int i = 0; i < 3; ++i) {
    wait_for_input(called_.get());
    ASSERT_TRUE(called_.receive(found_));
    EXPECT_EQ(found_.rank, i);
    EXPECT_EQ(found_.status.step, 100 + i);
  }
  EXPECT_FALSE(called_.receive(found_));
  EXPECT_TRUE(called_.is_open());
}

TEST_F(WatchLink, APartOfAFrameWaitsForItsRest) {
  const Frame sent = frame_of(5);
  const auto* bytes = reinterpret_cast<const char*>(&sent);
  constexpr std::size_t kFirst = 11;
  ::send(caller_.get(), bytes, kFirst, 0);
  wait_for_input(called_.get());
  const bool early = called_.receive(found_);
  ::send(caller_.get(), bytes + kFirst, sizeof sent - kFirst, 0);
  wait_for_input(called_.get());

  EXPECT_FALSE(early);
  EXPECT_TRUE(called_.receive(found_));
  EXPECT_EQ(found_.rank, 5);
}

TEST_F(WatchLink, WhatWasSaidBeforeTheEndArrives) {
  caller_.send(frame_of(7));
  caller_.finish();
  caller_.close();
  wait_for_input(called_.get());

  EXPECT_TRUE(called_.receive(found_));
  EXPECT_EQ(found_.rank, 7);
  EXPECT_FALSE(called_.receive(found_));
  EXPECT_FALSE(called_.is_open());
}

TEST_F(WatchLink, NobodyBlocksWhereNothingIsRead) {
  constexpr int kMany = 100'000;  // tens of MB
  for (int i = 0; i < kMany; ++i) caller_.send(frame_of(i));

  int before = -1;
  int received = 0;
  while (wait_for_input(called_.get()), called_.receive(found_)) {
    EXPECT_GT(found_.rank, before);
    EXPECT_EQ(found_.status.step, 100 + found_.rank);  // never parts of two frames
    before = found_.rank;
    ++received;
    if (found_.rank == kMany) break;
    caller_.send(frame_of(kMany));
  }
  EXPECT_EQ(before, kMany);
  EXPECT_LT(received, kMany);
}

TEST(Connecting, SaysWhyItDoesNot) {
  int port = 0;
  { port = comm::listen_on(false).port; }
  std::string problem;

  EXPECT_FALSE(comm::connect_to({"127.0.0.1"}, port, problem).is_open());
  EXPECT_THAT(problem, testing::AllOf(testing::HasSubstr("127.0.0.1:"),
                                      testing::HasSubstr("Connection refused")));
  EXPECT_FALSE(comm::connect_to({}, port, problem).is_open());
  EXPECT_EQ(problem, "it has no address");
}

TEST(Connecting, AddressesAreNotTheLoopback) {
  EXPECT_THAT(comm::own_addresses(), testing::Each(testing::Not(testing::StartsWith("127."))));
}

}  // namespace
}  // namespace hyperslab::test
