// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/gather.hpp"

#include <gtest/gtest.h>

#include <set>

#include "plan/made_up_machine.hpp"

namespace hyperslab::plan {
namespace {

using Kind = Operation::Kind;

Operation op(Phase phase, int microbatch) {
  Operation made = test::gemm(1024, 1024, 1024);
  made.phase = phase;
  made.microbatch = microbatch;
  return made;
}

/// Four ops of forward, four of backward and the optimizer, over 1,000 parameters.
Plan small_plan() {
  Plan plan;
  plan.parameters = {{"a", Shape{10, 60}}, {"b", Shape{400}}};
  OperationList& list = plan.operations.emplace_back();
  for (const Phase phase : {Phase::forward, Phase::backward})
    list.insert(list.end(), 4, op(phase, 0));
  list.push_back(op(Phase::optimizer, -1));
  return plan;
}

TEST(ParameterGathers, EachPassGathersAllParametersALayerAhead) {
  Plan plan = small_plan();
  add_parameter_gathers(plan, 2, 2);

  std::vector<Kind> kinds;
  double bytes = 0;
  for (const Operation& operation : plan.operations[0]) {
    kinds.push_back(operation.kind);
    bytes += operation.bytes;
  }
  std::vector<Kind> expected;
  for (int pass = 0; pass < 2; ++pass) {
    expected.insert(expected.end(), {Kind::collective, Kind::collective, Kind::wait, Kind::compute,
                                     Kind::compute, Kind::wait, Kind::compute, Kind::compute});
  }
  expected.push_back(Kind::compute);
  EXPECT_EQ(kinds, expected);
  EXPECT_EQ(bytes, 2 * 1000 * 2);
}

TEST(ParameterGathers, EveryGatherIsWaitedForOnce) {
  Plan plan = small_plan();
  add_parameter_gathers(plan, 3, 4);  // four ops are not three layers

  std::vector<std::uint64_t> started;
  std::vector<std::uint64_t> waited;
  for (const Operation& operation : plan.operations[0]) {
    if (operation.kind == Kind::collective) started.push_back(operation.ticket);
    if (operation.kind == Kind::wait) waited.push_back(operation.ticket);
  }
  EXPECT_EQ(started.size(), 6U);
  EXPECT_EQ(started, waited);
}

TEST(ParameterGathers, NoLayerIsLeftOutAndNoTicketUsedTwice) {
  Plan plan = small_plan();
  plan.operations.push_back(plan.operations.front());
  add_parameter_gathers(plan, 10, 2);  // more layers than ops

  std::set<std::uint64_t> tickets;
  double bytes = 0;
  for (const OperationList& step : plan.operations) {
    for (const Operation& operation : step) {
      if (operation.kind == Kind::collective) tickets.insert(operation.ticket);
      bytes += operation.bytes;
    }
  }
  EXPECT_EQ(tickets.size(), 2U * 2 * 10);
  EXPECT_DOUBLE_EQ(bytes, 2 * 2 * 1000 * 2);
}

}  // namespace
}  // namespace hyperslab::plan
