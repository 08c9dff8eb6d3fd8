// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/fault.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <set>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

using testing::HasSubstr;

/// HYPERSLAB_FAULT for the life of the object, in a process that is rank 1 in step 3.
class Set {
 public:
  explicit Set(const std::string& value) {
    fault::set(value);
    fault::set_rank(1);
    fault::set_step(3);
  }
  ~Set() { fault::set(""); }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  Set(Set&&) = delete;
  Set& operator=(Set&&) = delete;
};

std::string refusal(const std::string& value) {
  try {
    fault::set(value);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_TRUE(error.is_on_all_ranks());
    return error.what();
  }
  ADD_FAILURE() << value << " was taken";
  return "";
}

TEST(Fault, NothingFailsWithoutAnInjection) { EXPECT_EQ(fault::at("file.write", "/a"), 0); }

TEST(Fault, AnInjectionAnswersAsLongAsItLives) {
  {
    const fault::Injection injection([](std::string_view point, const std::string& subject) {
      return point == "file.write" && subject == "/a" ? ENOSPC : 0;
    });
    EXPECT_EQ(fault::at("file.write", "/a"), ENOSPC);
    EXPECT_EQ(fault::at("file.write", "/b"), 0);
    EXPECT_EQ(fault::at("file.sync", "/a"), 0);
  }
  EXPECT_EQ(fault::at("file.write", "/a"), 0);
}

TEST(Fault, ASecondInjectionIsRefusedAndChangesNothing) {
  const auto full = [](std::string_view /*point*/, const std::string& /*subject*/) {
    return ENOSPC;
  };
  const fault::Injection first(full);

  EXPECT_THROW(fault::Injection second(full), Error);
  EXPECT_EQ(fault::at("file.write", "/a"), ENOSPC);
}

TEST(Fault, EveryPointHasANameOfItsOwnAndAnAction) {
  std::set<std::string_view> names;
  for (const fault::Point& point : fault::points()) {
    EXPECT_TRUE(names.insert(point.name).second) << point.name;
    EXPECT_TRUE(fault::fits(fault::Action::kill, point)) << point.name;
    EXPECT_THAT(fault::description(), HasSubstr(std::string(point.name)));
  }
  for (const fault::ActionText& action : fault::actions()) {
    EXPECT_THAT(fault::description(), HasSubstr(std::string(action.name)));
  }
}

TEST(Fault, StrikesAtItsPointRankAndStep) {
  for (const char* value : {"file.write:1:3:error", "file.write:*:*:error", "*:1:3:error"}) {
    const Set set(value);
    EXPECT_EQ(fault::at("file.write", "/a"), EIO) << value;
  }
  for (const char* value : {"file.sync:1:3:error", "file.write:0:3:error", "file.write:1:2:error",
                            "file.write@b:1:3:error", "file.write#2:1:3:error"}) {
    const Set set(value);
    EXPECT_EQ(fault::at("file.write", "/a"), 0) << value;
  }
}

TEST(Fault, CountsWhatMatches) {
  const Set set("file.write@run/x#2:1:*:no_space");

  EXPECT_EQ(fault::at("file.write", "run/x"), 0);
  EXPECT_EQ(fault::at("file.write", "run/y"), 0);
  EXPECT_EQ(fault::at("file.sync", "run/x"), 0);
  EXPECT_EQ(fault::at("file.write", "run/x"), ENOSPC);
  EXPECT_EQ(fault::at("file.write", "run/x"), 0);
}

TEST(Fault, AnyCallIsACallOnAFile) {
  const Set set("*#2:*:*:error");

  fault::reach("step.forward");
  EXPECT_EQ(fault::at("file.create", "/a"), 0);
  fault::reach("step.forward");
  EXPECT_EQ(fault::at("tree.remove", "/a"), EIO);
}

TEST(Fault, AShortWriteIsOfWritesAlone) {
  const Set set("*#1:*:*:short_write");

  EXPECT_EQ(fault::at("file.sync", "/a"), 0);
  EXPECT_EQ(fault::at("file.write", "/a"), fault::kShortWrite);
}

TEST(Fault, SeveralMayBeSet) {
  const Set set("file.write:1:3:error,file.sync:1:3:no_space");

  EXPECT_EQ(fault::at("file.write", "/a"), EIO);
  EXPECT_EQ(fault::at("file.sync", "/a"), ENOSPC);
  EXPECT_THAT(fault::warning(), HasSubstr("file.write:1:3:error file.sync:1:3:no_space"));
}

TEST(Fault, AnErrorOfAPointThatIsNoCallIsThrown) {
  const Set set("start.data:*:*:no_space");

  EXPECT_THROW(fault::reach("start.data"), Error);
  fault::reach("start.resume");
}

TEST(Fault, CorruptsNumbersAndBitsWhereThereAreSome) {
  const Set set("step.gradients:1:3:nan,step.parameters#1:1:3:flip");

  EXPECT_TRUE(fault::corrupts("step.gradients"));
  EXPECT_TRUE(fault::corrupts("step.gradients"));
  EXPECT_TRUE(fault::corrupts("step.parameters"));
  EXPECT_FALSE(fault::corrupts("step.parameters"));
}

TEST(Fault, DelaysTheThread) {
  const Set set("step.forward:1:3:delay_0.05");
  const auto begin = std::chrono::steady_clock::now();

  fault::reach("step.forward");

  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST(FaultDeathTest, KillsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const Set set("step.forward:1:3:kill");
        fault::reach("step.forward");
      },
      testing::KilledBySignal(SIGKILL), "fault on purpose .step.forward:1:3:kill.: rank 1 step 3");
}

TEST(Fault, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(refusal("file.write"), HasSubstr("1 part(s) in place of 4"));
  EXPECT_THAT(refusal("file.writ:1:3:error"), HasSubstr("no point 'file.writ'"));
  EXPECT_THAT(refusal("file.write:one:3:error"), HasSubstr("the rank is 'one'"));
  EXPECT_THAT(refusal("file.write:1:-3:error"), HasSubstr("the step is '-3'"));
  EXPECT_THAT(refusal("file.write#0:1:3:error"), HasSubstr("'0' after #"));
  EXPECT_THAT(refusal("file.write:1:3:burn"), HasSubstr("no action 'burn'"));
  EXPECT_THAT(refusal("file.write:1:3:nan"), HasSubstr("file.write has no action nan"));
  EXPECT_THAT(refusal("file.sync:1:3:short_write"), HasSubstr("no action short_write"));
  EXPECT_THAT(refusal("file.sync:1:3:delay_soon"), HasSubstr("'soon' is no number of seconds"));
  EXPECT_THAT(refusal("file.sync:1:3:delay_"), HasSubstr("no number of seconds"));
  EXPECT_THAT(refusal("file.sync:1:3:kill,"), HasSubstr("1 part(s)"));
}

TEST(Fault, AWrongValueLeavesWhatWasSet) {
  const Set set("file.write:1:3:error");

  (void)refusal("nonsense");

  EXPECT_EQ(fault::at("file.write", "/a"), EIO);
}

}  // namespace
}  // namespace hyperslab
