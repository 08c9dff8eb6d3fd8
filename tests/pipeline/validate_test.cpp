// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/validate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "pipeline/layouts.hpp"

namespace hyperslab::test {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Payload;
using pipeline::problems;
using pipeline::Program;
using pipeline::Schedule;
using pipeline::Transfer;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Program one_by_one() { return pipeline::make_program(Schedule::one_forward_one_backward, 4, 1, 8); }

/// The k-th action of a rank for which `matches` holds.
template <class Predicate>
auto find(std::vector<Action>& actions, int k, Predicate matches) {
  return std::ranges::find_if(actions, [&](const Action& a) { return matches(a) && k-- == 0; });
}

auto is(ActionKind kind) {
  return [kind](const Action& action) { return action.kind == kind; };
}

/// Splits the first exchange that both sends and receives: one group each.
void serialize(std::vector<Action>& actions, bool sends_first) {
  const auto both = find(actions, 0, [](const Action& action) {
    const auto sends = std::ranges::count_if(action.transfers, [](auto& t) { return t.sends; });
    return sends > 0 && std::cmp_less(sends, action.transfers.size());
  });
  ASSERT_NE(both, actions.end());
  Action first{ActionKind::exchange, -1, -1, -1, {}};
  Action second = first;
  for (const Transfer& t : both->transfers) {
    (t.sends == sends_first ? first : second).transfers.push_back(t);
  }
  *both = second;
  actions.insert(both, first);
}

TEST(Problems, AreNoneIfGroupsOfNeighboursPair) {
  Program program = pipeline::make_program(Schedule::one_forward_one_backward, 2, 1, 4);
  serialize(program.ranks[0], true);
  serialize(program.ranks[1], false);

  EXPECT_THAT(problems(program), IsEmpty());
}

TEST(Problems, TwoNeighboursThatBothSendFirst) {
  Program program = pipeline::make_program(Schedule::one_forward_one_backward, 2, 1, 4);
  serialize(program.ranks[0], true);
  serialize(program.ranks[1], true);

  EXPECT_THAT(problems(program), ElementsAre(HasSubstr("deadlock: rank 0")));
  EXPECT_THROW(pipeline::validate(program), Error);
  EXPECT_THROW((void)pipeline::simulate(program, {}), Error);
}

TEST(Problems, GroupsOfOneRankSwapped) {
  const Program good = one_by_one();
  const std::vector<Action>& order = good.ranks[1];
  const auto last_forward =
      std::ranges::find_if(order.rbegin(), order.rend(), is(ActionKind::forward));
  std::vector<std::size_t> exchanges;
  for (std::size_t i = 0; i < static_cast<std::size_t>(order.rend() - last_forward); ++i) {
    if (order[i].kind == ActionKind::exchange) exchanges.push_back(i);
  }
  ASSERT_GT(exchanges.size(), 8U);

  for (std::size_t k = 0; k + 1 < exchanges.size(); ++k) {
    Program program = good;
    std::swap(program.ranks[1][exchanges[k]].transfers,
              program.ranks[1][exchanges[k + 1]].transfers);
    EXPECT_THAT(problems(program), testing::Not(IsEmpty())) << "exchange " << k;
  }
}

TEST(Problems, PassesThatWaitForEachOther) {
  // Rank 0 sends microbatch 1 only after the backward of microbatch 0, which rank 1 does later.
  Program program = pipeline::make_program(Schedule::gpipe, 2, 1, 2);
  std::vector<Action>& actions = program.ranks[0];
  const auto send = find(actions, 1, is(ActionKind::exchange));
  const auto backward = find(actions, 0, is(ActionKind::backward));
  ASSERT_LT(send, backward);
  std::rotate(send, send + 1, backward + 1);

  EXPECT_THAT(problems(program), ElementsAre(HasSubstr("deadlock: rank 0")));
}

TEST(Problems, DroppedReceive) {
  for (const Payload payload : {Payload::activation, Payload::gradient}) {
    Program program = one_by_one();
    for (Action& action : program.ranks[1]) {
      const auto dropped = std::ranges::find_if(action.transfers, [&](const Transfer& t) {
        return !t.sends && t.payload == payload && t.microbatch == 3;
      });
      if (dropped != action.transfers.end()) action.transfers.erase(dropped);
    }

    EXPECT_THAT(problems(program), Contains(HasSubstr("microbatch 3, chunk 0 does not find what")));
  }
}

TEST(Problems, DroppedSend) {
  Program program = one_by_one();
  for (Action& action : program.ranks[1]) {
    std::erase_if(action.transfers, [](const Transfer& t) {
      return t.sends && t.payload == Payload::activation && t.microbatch == 3;
    });
  }
  std::erase_if(program.ranks[1], [](const Action& action) {
    return action.kind == ActionKind::exchange && action.transfers.empty();
  });

  EXPECT_THAT(problems(program),
              ElementsAre("message 3 from rank 1 to rank 2: the activation of microbatch 4 from "
                          "stage 1 is sent, the activation of microbatch 3 from stage 1 is "
                          "received"));
}

TEST(Problems, DoubledSlot) {
  Program program = one_by_one();
  for (Action& action : program.ranks[1]) {  // three slots: 0, 1, 2, 0, ...
    if (action.kind != ActionKind::exchange && action.microbatch == 1) action.slot = 0;
    for (Transfer& t : action.transfers) {
      if (t.microbatch == 1) t.slot = 0;
    }
  }

  EXPECT_THAT(problems(program),
              Contains(HasSubstr("slot 0 of chunk 0 is taken for microbatch 1 while it holds 0")));
}

TEST(Problems, ReceivePostedBeforeItsSlotIsFree) {
  Program program = one_by_one();
  std::vector<Action>& last = program.ranks[3];  // one slot
  const auto receive = find(last, 1, [](const Action& action) {
    return std::ranges::any_of(action.transfers, [](auto& t) { return !t.sends; });
  });
  const auto is_receive = [](const Transfer& t) { return !t.sends; };
  Action early{ActionKind::exchange, -1, -1, -1, {}};
  std::ranges::copy_if(receive->transfers, std::back_inserter(early.transfers), is_receive);
  std::erase_if(receive->transfers, is_receive);
  last.insert(find(last, 0, is(ActionKind::backward)), early);

  EXPECT_THAT(problems(program), Contains(HasSubstr("while it holds 0")));
}

TEST(Problems, SendOfWhatTheSlotNoLongerHolds) {
  Program program = pipeline::make_program(Schedule::gpipe, 2, 1, 2);
  for (Action& action : program.ranks[0]) {
    for (Transfer& t : action.transfers) {
      if (t.sends) t.slot = 1 - t.slot;
    }
  }

  EXPECT_THAT(problems(program), Contains(HasSubstr("does not hold")));
}

TEST(Problems, PassesThatAreMissingOrDone) {
  Program program = pipeline::make_program(Schedule::zero_bubble, 2, 1, 4);
  std::vector<Action>& actions = program.ranks[0];
  actions.erase(find(actions, 2, is(ActionKind::backward_weight)));
  EXPECT_THAT(problems(program),
              Contains(HasSubstr("microbatch 2 goes 1 times forward and 0 times backward")));

  program = pipeline::make_program(Schedule::zero_bubble, 2, 1, 4);
  std::vector<Action>& others = program.ranks[1];
  others.push_back(*find(others, 0, is(ActionKind::forward)));
  EXPECT_THAT(problems(program), Contains(HasSubstr("goes 2 times forward")));
}

TEST(Problems, IndicesThatAreNot) {
  Program program = one_by_one();
  program.ranks[2].front().transfers.front().slot = 7;
  EXPECT_THAT(problems(program), Contains(HasSubstr("do not exist in this program")));

  program = one_by_one();
  program.ranks[2].front().transfers.front().peer = 0;
  EXPECT_THAT(problems(program), Contains(HasSubstr("is not the other end")));

  program = one_by_one();
  program.slots.pop_back();
  EXPECT_THAT(problems(program), ElementsAre(HasSubstr("its ranks and slots")));
}

TEST(Simulation, AddsUpByHand) {
  // F 1, B 3: rank 1 starts after 1 + 0.5; rank 0 ends after B, a transfer and its own B.
  const Program program = pipeline::make_program(Schedule::gpipe, 2, 1, 1);

  const auto run = pipeline::simulate(
      program, {.forward = 1, .backward_input = 1, .backward_weight = 2, .transfer = 0.5});

  EXPECT_DOUBLE_EQ(run.seconds, 1 + 0.5 + 1 + 3 + 0.5 + 3);
  EXPECT_THAT(run.busy, ElementsAre(4, 4));
  EXPECT_THAT(run.idle, ElementsAre(5, 5));
  EXPECT_DOUBLE_EQ(run.idle_fraction(), 1.25);
}

TEST(Simulation, HoldsTheIdealForOtherRatiosOfForwardAndBackward) {
  for (const double backward : {0.5, 1.0, 3.0}) {
    for (const Schedule schedule : {Schedule::gpipe, Schedule::one_forward_one_backward}) {
      const auto run = pipeline::simulate(pipeline::make_program(schedule, 4, 1, 16),
                                          {.backward_input = backward, .backward_weight = 0});
      EXPECT_NEAR(run.idle_fraction(), 3.0 / 16, 1e-12);
    }
  }
}

TEST(Simulation, TransfersCostLittleIfTheyOverlap) {
  // Small against a pass: at most three a microbatch and a round trip of the pipeline are exposed.
  for (const Schedule schedule : kSchedules) {
    const Program program = pipeline::make_program(schedule, 4, 1, 32);
    const double without = pipeline::simulate(program, {}).seconds;
    const double with = pipeline::simulate(program, {.transfer = 0.01}).seconds;
    EXPECT_GT(with, without);
    EXPECT_LT(with, without + 0.01 * 3 * (32 + 2 * 4)) << pipeline::name_of(schedule);
  }
}

}  // namespace
}  // namespace hyperslab::test
