// SPDX-License-Identifier: Apache-2.0
#include "watch_diagnosis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace hyperslab::test {
namespace {

using comm::Call;
using comm::CallState;
using comm::GroupRole;
using comm::Link;
using comm::Peer;
using comm::Status;
using testing::HasSubstr;
using testing::Not;

constexpr double kNow = 100;
constexpr comm::Limits kLimits = {.timeout = 10, .silence = 5, .grace = 0.5};

CallState call(GroupRole group, std::uint64_t called, std::uint64_t awaited) {
  CallState state;
  state.group = group;
  state.leader = 0;
  state.called = called;
  state.awaited = awaited;
  state.last = state.awaited_kind = Call::all_reduce;
  state.waits = awaited > 0;
  return state;
}

/// Four ranks in step 7 that answer and wait in call 31 of "data", without progress for 10 s.
std::vector<Peer> waiting_ranks() {
  std::vector<Peer> peers(4);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Peer& peer = peers[i];
    peer.name = "rank " + std::to_string(i) + " host n1";
    peer.link = Link::connected;
    peer.heard = kNow - 1;
    peer.moved = kNow - 10;
    peer.status.step = 7;
    peer.status.ended_step = 6;
    peer.status.groups = 1;
    peer.status.calls[0] = call(GroupRole::data, 31, 31);
  }
  return peers;
}

std::string line(const std::vector<Peer>& peers) {
  const comm::Diagnosis diagnosis = comm::diagnose(peers, kLimits, kNow);
  EXPECT_TRUE(diagnosis.ends_job);
  EXPECT_THAT(diagnosis.line, Not(HasSubstr("\n")));
  return diagnosis.line;
}

TEST(Diagnosis, NamesWhoDoesNotAnswer) {
  auto peers = waiting_ranks();
  peers[2].heard = kNow - 6;
  peers[2].status.phase = Phase::backward;
  peers[2].status.microbatch = 3;
  peers[2].status.calls[0] = call(GroupRole::data, 30, 0);

  const comm::Diagnosis diagnosis = comm::diagnose(peers, kLimits, kNow);

  EXPECT_EQ(diagnosis.silent, std::vector<int>{2});
  EXPECT_EQ(diagnosis.line,
            "no rank got anything done for 10 s: rank 2 host n1 does not answer (stopped, or its "
            "machine is down), last heard of in step 7, backward of microbatch 3, newest calls "
            "data all_reduce 30; ranks 0-1, 3 wait in data all_reduce 31; the job ends (longer "
            "pauses: run.hang_timeout_seconds, now 10)");
}

TEST(Diagnosis, NamesWhoWaitsForNoOne) {
  auto peers = waiting_ranks();
  peers[1].status.calls[0] = call(GroupRole::data, 30, 0);
  peers[1].status.phase = Phase::forward;

  EXPECT_THAT(line(peers), HasSubstr("rank 1 host n1 is stuck in step 7, forward, newest calls "
                                     "data all_reduce 30; ranks 0, 2-3 wait in data all_reduce"));
}

TEST(Diagnosis, NamesWhoWaitsElsewhereAndMadeFewerCalls) {
  auto peers = waiting_ranks();
  peers[3].status.groups = 2;
  peers[3].status.calls[0] = call(GroupRole::data, 30, 0);
  peers[3].status.calls[1] = call(GroupRole::tensor, 4, 4);

  EXPECT_THAT(line(peers), HasSubstr("rank 3 host n1 has not made the call that others wait in, it "
                                     "is in step 7, waiting in tensor all_reduce 4, newest calls "
                                     "data all_reduce 30, tensor all_reduce 4"));
}

TEST(Diagnosis, NamesTheDeviceThatIsBehind) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) {
    peer.status.calls[0] = call(GroupRole::data, 31, 0);
    peer.status.awaited_step = 6;
  }
  const std::string equal = line(peers);
  peers[1].status.awaited_step = 5;

  EXPECT_THAT(equal, HasSubstr("ranks 0-3 wait for the device to end step 6"));
  EXPECT_THAT(equal,
              HasSubstr("rank 0 host n1 is in step 7, waiting for the device to end step 6"));
  EXPECT_THAT(line(peers), HasSubstr("s: rank 1 host n1 has a device that is behind"));
}

TEST(Diagnosis, NoneWhileOneRankGetsOn) {
  auto peers = waiting_ranks();
  peers[1].moved = kNow - 9.9;
  peers[2].heard = kNow - 90;

  EXPECT_FALSE(comm::diagnose(peers, kLimits, kNow).ends_job);
}

TEST(Diagnosis, APauseCountsWhileItsRankAnswers) {
  auto peers = waiting_ranks();
  peers[1].status.pauses = true;
  peers[1].moved = kNow - 90;
  const bool answers = comm::diagnose(peers, kLimits, kNow).ends_job;
  peers[1].heard = kNow - 90;
  const bool stopped = comm::diagnose(peers, kLimits, kNow).ends_job;

  EXPECT_FALSE(answers);
  EXPECT_TRUE(stopped);
}

TEST(Diagnosis, APauseLastsTenTimesTheTimeoutAndSaysWhatItIsFor) {
  auto peers = waiting_ranks();
  peers[1].status.pauses = true;
  peers[1].status.calls[0] = call(GroupRole::data, 30, 0);
  std::ranges::copy(std::string("removing run/step_00000004 for 99 s"),
                    peers[1].status.task.begin());
  peers[1].moved = kNow - 99;
  const bool early = comm::diagnose(peers, kLimits, kNow).ends_job;
  peers[1].moved = kNow - 100;

  EXPECT_FALSE(early);
  EXPECT_THAT(line(peers),
              HasSubstr("no rank got anything done for 10 s: rank 1 host n1 is stuck in "
                        "step 7, removing run/step_00000004 for 99 s, newest calls"));
}

TEST(Diagnosis, ARankInACallOnStorageIsToBlameAndThoseThatWaitForItsSaveAreNot) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) {
    peer.status.calls[0] = call(GroupRole::data, 31, 0);
    peer.status.awaits_save = true;
    peer.moved = kNow - 200;
  }
  peers[1].status.stores = peers[1].status.pauses = true;
  std::ranges::copy(std::string("syncing run/step_00000004 for 199 s"),
                    peers[1].status.task.begin());

  EXPECT_THAT(line(peers),
              HasSubstr("rank 1 host n1 is stuck in step 7, syncing run/step_00000004 for 199 s, "
                        "newest calls data all_reduce 31; ranks 0, 2-3 wait for the checkpoint "
                        "that is written beside training"));
}

TEST(Diagnosis, ARankThatWaitsInACallWhileItsStorageHangsIsToBlame) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) peer.moved = kNow - 200;
  peers[2].status.stores = peers[2].status.pauses = true;

  EXPECT_THAT(line(peers), HasSubstr("s: rank 2 host n1 is stuck in step 7"));
}

TEST(Diagnosis, TheEndOfAPauseCountsAsProgress) {
  Peer peer;
  Status status;
  status.stores = status.pauses = true;
  peer.update(status, 10);
  peer.moved = 2;
  peer.update(status, 40);
  const double during = peer.moved;
  status.stores = status.pauses = false;
  peer.update(status, 41);

  EXPECT_EQ(during, 2);
  EXPECT_EQ(peer.moved, 41);
}

TEST(Diagnosis, ARankThatStoppedBeforeItsFirstStepDoesNotLengthenTheTimeout) {
  auto peers = waiting_ranks();
  peers[3].status.step = peers[3].status.ended_step = 0;
  peers[3].heard = kNow - 6;

  EXPECT_THAT(line(peers), HasSubstr("for 10 s: rank 3 host n1 does not answer"));
}

TEST(Diagnosis, AllowsThreeTimesTheTimeoutUntilEveryRankHasEndedAStep) {
  auto peers = waiting_ranks();
  peers[3].status.ended_step = 0;
  const bool early = comm::diagnose(peers, kLimits, kNow).ends_job;
  const bool late = comm::diagnose(peers, kLimits, kNow + 20).ends_job;

  EXPECT_FALSE(early);
  EXPECT_TRUE(late);
}

TEST(Diagnosis, ABrokenConnectionIsALostRank) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) peer.moved = kNow;
  peers[1].link = peers[2].link = Link::broken;
  peers[1].broken = peers[2].broken = kNow - 0.4;
  const bool at_once = comm::diagnose(peers, kLimits, kNow).ends_job;
  peers[1].broken = kNow - 0.5;

  EXPECT_FALSE(at_once);
  EXPECT_THAT(line(peers),
              HasSubstr("rank 1 host n1 is gone (killed, or crashed), last heard of in "
                        "step 7, waiting in data all_reduce 31"));
  EXPECT_THAT(line(peers), HasSubstr("; rank 2 host n1 is gone"));
}

TEST(Diagnosis, ARankThatFailedExplainsLaterBreaksButNoHang) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) peer.moved = kNow - 5;
  peers[1].link = Link::failed;
  peers[2].link = Link::broken;
  peers[2].broken = kNow - 4;
  const bool now = comm::diagnose(peers, kLimits, kNow).ends_job;
  peers[2].broken = kNow - 6;
  const bool before = comm::diagnose(peers, kLimits, kNow).ends_job;
  peers[2].broken = kNow - 4;
  for (Peer& peer : peers) peer.moved = kNow - 10;

  EXPECT_FALSE(now);
  EXPECT_TRUE(before);
  EXPECT_THAT(line(peers), HasSubstr("rank 2 host n1 is gone"));
  EXPECT_THAT(line(peers), HasSubstr("rank 1 left after an error"));
}

TEST(Diagnosis, NoneRightAfterTheRankThatGotOnHasLeft) {
  auto peers = waiting_ranks();
  peers[1].link = Link::left;
  peers[1].moved = kNow - 1;

  EXPECT_FALSE(comm::diagnose(peers, kLimits, kNow).ends_job);
  EXPECT_TRUE(comm::diagnose(peers, kLimits, kNow + 9).ends_job);
}

TEST(Diagnosis, RanksThatLeftDoNotHang) {
  auto peers = waiting_ranks();
  for (Peer& peer : peers) peer.link = Link::left;

  EXPECT_FALSE(comm::diagnose(peers, kLimits, kNow).ends_job);
}

TEST(Diagnosis, ManyRanksMakeOneShortLine) {
  std::vector<Peer> peers = waiting_ranks();
  peers.resize(1000, peers[0]);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (i % 3 == 0) peers[i].heard = 0;
    if (i % 3 == 1) peers[i].status.calls[0].awaited = i;
  }

  EXPECT_LT(line(peers).size(), 2000);
}

TEST(FlightRecorders, ShowWhatWasCalledAndWhatIsAwaited) {
  comm::FlightRecorders recorders;
  const auto data = recorders.add(GroupRole::data, 4);
  auto gone = recorders.add(GroupRole::tensor, 0);
  gone.reset();
  data->called(Call::send, 1);
  data->called(Call::all_gather, 2);
  data->wait_begins(Call::send, 1);
  const Status waiting = Status::of(recorders);
  data->wait_ends();
  const Status after = Status::of(recorders);

  ASSERT_EQ(waiting.groups, 1);
  EXPECT_EQ(waiting.calls[0].group, GroupRole::data);
  EXPECT_EQ(waiting.calls[0].leader, 4);
  EXPECT_EQ(waiting.calls[0].last, Call::all_gather);
  EXPECT_EQ(waiting.calls[0].called, 2U);
  EXPECT_EQ(waiting.calls[0].awaited_kind, Call::send);
  EXPECT_TRUE(waiting.calls[0].waits);
  EXPECT_FALSE(after.calls[0].waits);
  EXPECT_GT(after.beats, waiting.beats);
}

/// One of two members; takes a snapshot of its flight recorder while it waits.
class WatchedMember final : public comm::Communicator {
 public:
  explicit WatchedMember(comm::FlightRecorders& recorders)
      : Communicator(GroupRole::data, 0, 2, Device::cpu), recorders_(recorders) {
    record_calls(recorders.add(GroupRole::data, 0));
  }
  void progress() override {}
  [[nodiscard]] std::unique_ptr<Communicator> split(int, int, GroupRole) override {
    return nullptr;
  }
  Status seen;  ///< in the newest wait, and while members begin or end to share memory

 private:
  void do_all_reduce(Stream&, View, comm::ReduceOp, comm::Ticket) override {}
  void do_reduce_scatter(Stream&, View, View, comm::Ticket) override {}
  void do_all_gather(Stream&, CView, View, comm::Ticket) override {}
  void do_all_to_all(Stream&, CView, View, comm::Ticket) override {}
  void do_broadcast(Stream&, View, int, comm::Ticket) override {}
  void do_exchange(Stream&, std::span<const comm::Message>, comm::Ticket) override {}
  double do_wait(Stream&, comm::Ticket) override {
    seen = Status::of(recorders_);
    return 0;
  }
  void do_barrier() override {}
  [[nodiscard]] std::shared_ptr<void> do_share(const Arena& arena) override {
    seen = Status::of(recorders_);
    if (arena.used_bytes() == 0) return nullptr;
    return {this, [](WatchedMember* member) { member->seen = Status::of(member->recorders_); }};
  }
  [[nodiscard]] bool announces_arrivals() const override { return true; }

  comm::FlightRecorders& recorders_;
};

TEST(FlightRecorders, DoNotShowThatMembersAwaitArrivals) {
  comm::FlightRecorders recorders;
  WatchedMember member(recorders);
  Context ctx(Device::cpu);
  Tensor value(Device::cpu, DType::f32, {1});
  const comm::Ticket sum = member.all_reduce(ctx, value.view(), comm::ReduceOp::sum);
  const comm::Ticket arrival = member.arrive(ctx);

  member.wait(ctx, arrival);
  EXPECT_FALSE(member.seen.calls[0].waits);
  EXPECT_EQ(member.seen.calls[0].called, sum);
  member.wait(ctx, sum);
  EXPECT_TRUE(member.seen.calls[0].waits);
  EXPECT_EQ(member.seen.calls[0].awaited, sum);
}

TEST(FlightRecorders, ShowThatMembersBeginAndEndToShareMemory) {
  comm::FlightRecorders recorders;
  WatchedMember member(recorders);
  Context ctx(Device::cpu);
  Tensor value(Device::cpu, DType::f32, {1});
  const comm::Ticket sum = member.all_reduce(ctx, value.view(), comm::ReduceOp::sum);
  Arena arena("scratch", Device::cpu, 256);
  const auto expect_seen = [&] {
    EXPECT_TRUE(member.seen.calls[0].waits);
    EXPECT_EQ(name_of(member.seen.calls[0].awaited_kind), "share");
    EXPECT_EQ(member.seen.calls[0].awaited, sum) << "calls before it";
    EXPECT_FALSE(Status::of(recorders).calls[0].waits);
    member.seen = {};
  };

  EXPECT_EQ(member.share(arena), nullptr) << "as the member cannot";
  expect_seen();
  (void)arena.take(DType::f32, {1}, "x");
  std::shared_ptr<void> shared = member.share(arena);
  ASSERT_NE(shared, nullptr);
  expect_seen();
  shared.reset();
  expect_seen();
}

TEST(Peer, MovesWithItsBeatsAlone) {
  Peer peer;
  Status status;
  status.beats = 5;
  peer.update(status, 1);
  status.step = 2;
  peer.update(status, 2);

  EXPECT_EQ(peer.moved, 1);
  EXPECT_EQ(peer.heard, 2);
}

}  // namespace
}  // namespace hyperslab::test
