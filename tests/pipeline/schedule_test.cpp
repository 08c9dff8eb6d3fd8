// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/pipeline/validate.hpp"
#include "pipeline/layouts.hpp"

namespace hyperslab::test {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Program;
using pipeline::Schedule;
using testing::HasSubstr;

constexpr int kStages = 16;
constexpr int kMicrobatches = 64;

class EverySchedule : public testing::TestWithParam<Schedule> {};

std::string name_of_case(const testing::TestParamInfo<Schedule>& info) {
  return "of_" + std::string(pipeline::name_of(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, EverySchedule, testing::ValuesIn(kSchedules), name_of_case);

/// What `make` was refused with.
std::string refusal(Schedule schedule, int p, int v, int m) {
  try {
    (void)pipeline::make_program(schedule, p, v, m);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return {};
}

/// Most microbatches between their forward and their last backward part.
int most_in_flight(const std::vector<Action>& actions) {
  int now = 0;
  int most = 0;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::forward) most = std::max(most, ++now);
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) --now;
  }
  return most;
}

TEST_P(EverySchedule, HasNoProblemsAndTheIdealIdleTime) {
  for (const PipelineLayout& layout : legal_layouts(GetParam(), kStages, kMicrobatches)) {
    const auto& [schedule, p, v, m] = layout;
    const Program program = layout.program();
    const pipeline::Simulation run = pipeline::simulate(program, {});

    ASSERT_EQ(pipeline::problems(program), std::vector<std::string>())
        << testing::PrintToString(layout);
    if (schedule != Schedule::forward_only) {  // whose ring of two is not always full
      ASSERT_EQ(run.peak_slots, program.slots) << testing::PrintToString(layout);
    }
    if (schedule == Schedule::zero_bubble && m < 2 * p) continue;
    if (schedule == Schedule::forward_only && v > 1 && m % p != 0) continue;
    ASSERT_NEAR(run.idle_fraction(), pipeline::ideal_idle_fraction(schedule, p, v, m), 1e-12)
        << testing::PrintToString(layout);
  }
}

TEST_P(EverySchedule, OfOneStageHasNoExchanges) {
  const Program program = pipeline::make_program(GetParam(), 1, 1, 3);

  for (const Action& action : program.ranks.front()) EXPECT_NE(action.kind, ActionKind::exchange);
}

TEST_P(EverySchedule, ExchangesAsMuchAsTheMicrobatchesNeed) {
  const Program program = pipeline::make_program(GetParam(), 4, 1, 7);
  std::size_t sends = 0;

  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      EXPECT_EQ(action.transfers.empty(), action.kind != ActionKind::exchange);
      sends += static_cast<std::size_t>(
          std::ranges::count_if(action.transfers, [](const auto& t) { return t.sends; }));
    }
  }

  EXPECT_EQ(sends, GetParam() == Schedule::forward_only ? 3U * 7U : 2U * 3U * 7U);
}

TEST(Slots, OfOneForwardOneBackwardAreTheStagesToCome) {
  for (const auto& [schedule, p, v, m] :
       legal_layouts(Schedule::one_forward_one_backward, kStages, kMicrobatches)) {
    const Program program = pipeline::make_program(schedule, p, v, m);
    for (int s = 0; s < p; ++s) {
      ASSERT_EQ(program.slot_count(s, 0), std::min(m, p - s)) << "p " << p << " m " << m;
      ASSERT_EQ(most_in_flight(program.ranks[static_cast<std::size_t>(s)]), std::min(m, p - s));
    }
  }
}

TEST(Slots, OfZeroBubbleAreThoseOfTheFirstRankOfOneForwardOneBackward) {
  for (const auto& [schedule, p, v, m] :
       legal_layouts(Schedule::zero_bubble, kStages, kMicrobatches)) {
    const Program program = pipeline::make_program(schedule, p, v, m);
    for (int s = 0; s < p; ++s) ASSERT_LE(program.slot_count(s, 0), std::min(m, p));
    ASSERT_EQ(program.slot_count(0, 0), std::min(m, p));
  }
}

TEST(Slots, OfGpipeAreAllMicrobatchesAndOfForwardOnlyTwo) {
  EXPECT_EQ(pipeline::make_program(Schedule::gpipe, 3, 1, 5).slots,
            (std::vector<std::vector<int>>{{5}, {5}, {5}}));
  EXPECT_EQ(pipeline::make_program(Schedule::forward_only, 2, 2, 5).slots,
            (std::vector<std::vector<int>>{{2, 2}, {2, 2}}));
}

TEST(Slots, OfInterleavedDoNotGrowWithTheMicrobatches) {
  const Program few = pipeline::make_program(Schedule::interleaved, 4, 2, 16);
  const Program many = pipeline::make_program(Schedule::interleaved, 4, 2, 64);

  EXPECT_EQ(few.slots, many.slots);
}

TEST(Interleaved, WithOneVirtualStageIsOneForwardOneBackward) {
  const Program a = pipeline::make_program(Schedule::interleaved, 4, 1, 6);
  const Program b = pipeline::make_program(Schedule::one_forward_one_backward, 4, 1, 6);

  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    ASSERT_EQ(a.ranks[rank].size(), b.ranks[rank].size());
    for (std::size_t i = 0; i < a.ranks[rank].size(); ++i) {
      EXPECT_EQ(a.ranks[rank][i].kind, b.ranks[rank][i].kind);
      EXPECT_EQ(a.ranks[rank][i].microbatch, b.ranks[rank][i].microbatch);
      EXPECT_EQ(a.ranks[rank][i].transfers, b.ranks[rank][i].transfers);
    }
  }
}

TEST(Order, OfTwoStagesOneForwardOneBackwardByHand) {
  const Program program = pipeline::make_program(Schedule::one_forward_one_backward, 2, 1, 2);
  const auto kinds = [&](std::size_t rank) {
    std::string text;
    for (const Action& action : program.ranks[rank]) {
      text += action.kind == ActionKind::forward    ? 'F'
              : action.kind == ActionKind::backward ? 'B'
                                                    : '(';
      if (action.kind != ActionKind::exchange) text += std::to_string(action.microbatch);
      for (const auto& t : action.transfers) {
        text += t.sends ? 's' : 'r';
        text += t.payload == pipeline::Payload::activation ? 'a' : 'g';
        text += std::to_string(t.microbatch);
      }
      if (action.kind == ActionKind::exchange) text += ')';
    }
    return text;
  };

  // Rank 1 has one slot: it takes microbatch 1 when microbatch 0 has left it.
  EXPECT_EQ(kinds(0), "F0(sa0)F1(sa1rg0)B0(rg1)B1");
  EXPECT_EQ(kinds(1), "(ra0)F0B0(ra1sg0)F1B1(sg1)");
}

TEST(ZeroBubble, BeatsOneForwardOneBackwardWithFewMicrobatchesToo) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = 1; m <= 2 * p; ++m) {
      const auto split = pipeline::make_program(Schedule::zero_bubble, p, 1, m);
      const auto whole = pipeline::make_program(Schedule::one_forward_one_backward, p, 1, m);
      EXPECT_LT(pipeline::simulate(split, {}).seconds, pipeline::simulate(whole, {}).seconds)
          << "p " << p << " m " << m;
    }
  }
}

TEST(Legality, SaysWhatIsWrong) {
  EXPECT_THAT(refusal(Schedule::interleaved, 4, 2, 6), HasSubstr("a multiple of 4 microbatches"));
  EXPECT_THAT(refusal(Schedule::one_forward_one_backward, 4, 2, 8), HasSubstr("interleaved"));
  EXPECT_THAT(refusal(Schedule::forward_only, 1, 2, 8), HasSubstr("one stage"));
  EXPECT_THAT(refusal(Schedule::gpipe, 4, 1, 0), HasSubstr("at least 1"));
}

}  // namespace
}  // namespace hyperslab::test
