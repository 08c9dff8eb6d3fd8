// SPDX-License-Identifier: Apache-2.0
#include "preflight.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "preflight_gpu.hpp"
#include "preflight_links.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::run {
namespace {

using comm::GroupRole;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kMiB = 1 << 20;

std::string refusal(const CheckpointSpace& space) {
  try {
    return check_space(space);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return std::string("refused: ") + error.what();
  }
}

TEST(CheckpointSpace, IsForAllThatAreKeptAndOneMore) {
  CheckpointSpace space{"runs/x/checkpoints", 40 * kMiB, 10 * kMiB, 0, 3, 100};
  EXPECT_EQ(refusal(space), "");
  space.free = 39 * kMiB;
  EXPECT_EQ(refusal(space),
            "runs/x/checkpoints: there is room for 3 more checkpoints of 10.0 MiB (39.0 MiB are "
            "free), and this start will need room for 4; make room, keep fewer (checkpoint.keep), "
            "or set checkpoint.directory");
  space.existing = 1;
  EXPECT_EQ(refusal(space), "") << "which goes, in time";
  space.free = 10 * kMiB;
  space.existing = 9;
  EXPECT_EQ(refusal(space), "");
}

TEST(CheckpointSpace, IsForNoMoreThanTheStartWrites) {
  CheckpointSpace space{"c", 20 * kMiB, 10 * kMiB, 0, 3, 2};
  EXPECT_EQ(refusal(space), "");
  space.keep = 0;
  space.planned = 3;
  EXPECT_THAT(refusal(space), HasSubstr("will need room for 3"));
}

TEST(CheckpointSpace, OneMustFit) {
  EXPECT_THAT(refusal({"c", 9 * kMiB, 10 * kMiB, 5, 3, 2}),
              testing::StartsWith("refused: c: a checkpoint needs 10.0 MiB and 9.0 MiB are free"));
}

/// Two ranks, of which this is the second: the first does as this one did at first.
class Pair final : public comm::Peers {
 public:
  [[nodiscard]] int rank() const override { return 1; }
  [[nodiscard]] int size() const override { return 2; }
  [[nodiscard]] const std::string& host() const override { return host_; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    if (first_.empty()) first_ = text;
    return {first_, text};
  }

 private:
  std::string first_;
  std::string host_ = "n7";
};

TEST(ProbeDirectories, MakesThemAndLeavesNothingInThem) {
  const test::TempFolder folder;
  const std::vector<std::string> both = {folder.path() + "/run", folder.path() + "/run/saved"};
  Pair peers;

  probe_directories(peers, false, both);
  EXPECT_FALSE(std::filesystem::exists(both[0]));
  probe_directories(peers, true, both);

  EXPECT_TRUE(std::filesystem::is_empty(both[1]));
}

TEST(ProbeDirectories, NamesTheHostThatCannotWrite) {
  const test::TempFolder folder;
  std::ofstream(folder.path() + "/file") << "in the way";
  const std::vector<std::string> directories = {folder.path() + "/file/run"};
  Pair peers;
  probe_directories(peers, false, directories);
  try {
    probe_directories(peers, true, directories);
    FAIL() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_THAT(error.what(), HasSubstr("host n7"));
    EXPECT_THAT(error.what(), HasSubstr("/file/run: cannot make this directory"));
  }
}

/// Two data groups of two ranks on two hosts; rank 3's is slow by `factor`.
std::vector<RankTimes> four_ranks(double factor) {
  const auto rank = [](const char* host, int leader, double seconds) {
    return RankTimes{host, "cpu", 1, {{GroupRole::tensor, leader, seconds}}};
  };
  return {rank("n1", 0, 1e-3), rank("n1", 0, 1e-3), rank("n2", 2, 1e-3),
          rank("n2", 2, factor * 1e-3)};
}

TEST(SlowGroups, AreThoseUnderHalfOfTheMedian) {
  EXPECT_THAT(slow_groups(four_ranks(1.9), 1 << 20, nullptr), IsEmpty());
  EXPECT_THAT(
      slow_groups(four_ranks(2.1), 1 << 20, nullptr),
      ElementsAre("slow link: the tensor group of ranks 2, 3 on host n2 reaches 0.50 GB/s in "
                  "all_reduce of 1 MiB, and the median of such groups is 1.05 GB/s; look at its "
                  "network or NVLink"));
}

TEST(SlowGroups, AreThoseUnderHalfOfWhatTheMachineFileExpects) {
  plan::MachineFile machine;
  machine.name = "NVIDIA H200";
  machine.collectives = {{"tensor", "all_reduce", 2, 1 << 20, 1e-4}};

  const auto lines = slow_groups(four_ranks(1), 1 << 20, &machine);

  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], HasSubstr("ranks 0, 1 on host n1 reaches 1.05 GB/s"));
  EXPECT_THAT(lines[0], HasSubstr("the machine file of NVIDIA H200 expects 10.49 GB/s"));
  machine.collectives.front().seconds = 0.9e-3;
  EXPECT_THAT(slow_groups(four_ranks(1), 1 << 20, &machine), IsEmpty());
  machine.collectives.clear();
  EXPECT_THROW((void)slow_groups(four_ranks(1), 1 << 20, &machine), Error);
}

TEST(LinkSummary, NamesEveryKindOfGroup) {
  std::vector<RankTimes> ranks = four_ranks(4);
  for (RankTimes& rank : ranks) rank.groups.push_back({GroupRole::world, 0, 1e-3});

  EXPECT_EQ(link_summary(ranks, 1 << 20),
            "links: world 1.57 GB/s (1 of 4 ranks), tensor 0.26 to 1.05 GB/s (2 of 2 ranks), in "
            "all_reduce of 1 MiB");
}

TEST(SlowRanks, AreThoseUnderSevenTenthsOfTheMedianRate) {
  std::vector<RankTimes> ranks = four_ranks(1);
  ranks[2].product_seconds = 1.4;
  EXPECT_THAT(slow_ranks(ranks), IsEmpty());
  ranks[2].product_seconds = 2;
  EXPECT_THAT(slow_ranks(ranks), ElementsAre(HasSubstr("rank 2 on host n2 (cpu) multiplies "
                                                       "matrices at 50 % of the median rate")));
}

// A driver that answers what the test says.
unsigned long long throttle = 0;
unsigned long long uncorrected = 0;
unsigned pending = 0;
int opened = 0;

Nvml pretended() {
  throttle = uncorrected = pending = 0;
  opened = 0;
  Nvml nvml;
  nvml.init = [] { return ++opened, 0; };
  nvml.shutdown = [] { return --opened, 0; };
  nvml.handle_by_bus_id = [](const char* bus_id, Nvml::Device*) {
    return std::string(bus_id) == "0000:1B:00.0" ? 0 : 6;
  };
  nvml.throttle_reasons = [](Nvml::Device, unsigned long long* reasons) {
    return *reasons = throttle, 0;
  };
  nvml.clock = [](Nvml::Device, int, unsigned* mhz) { return *mhz = 1200, 0; };
  nvml.max_clock = [](Nvml::Device, int, unsigned* mhz) { return *mhz = 1980, 0; };
  nvml.ecc_errors = [](Nvml::Device, int kind, int, unsigned long long* count) {
    return *count = kind == 1 ? uncorrected : 99, 0;
  };
  nvml.remapped_rows = [](Nvml::Device, unsigned*, unsigned*, unsigned* is_pending,
                          unsigned* failed) { return *is_pending = pending, *failed = 0, 0; };
  return nvml;
}

TEST(GpuProblem, IsWhatTheDriverReports) {
  const Nvml nvml = pretended();
  const std::string gpu = "0000:1B:00.0";
  throttle = 0x1 | 0x4;  // idle, or at its usual power limit
  EXPECT_EQ(gpu_problem(nvml, gpu), "");
  throttle = 0x40;
  EXPECT_EQ(gpu_problem(nvml, gpu), "its clock is held back by heat (1200 of 1980 MHz)");
  throttle = 0x80 | 0x8;
  uncorrected = 1;
  pending = 1;
  EXPECT_EQ(gpu_problem(nvml, gpu),
            "its clock is held back by the power brake (1200 of 1980 MHz); its memory had 1 error "
            "that ECC could not correct; rows of its memory wait to be replaced: reset the GPU");
  EXPECT_EQ(gpu_problem(nvml, "elsewhere"), "");
  EXPECT_EQ(opened, 0);
}

TEST(GpuProblem, ADriverThatDoesNotReportIsNoProblem) {
  Nvml nvml = pretended();
  nvml.throttle_reasons = nullptr;
  nvml.ecc_errors = nullptr;
  nvml.remapped_rows = nullptr;
  EXPECT_EQ(gpu_problem(nvml, "0000:1B:00.0"), "");
  nvml.init = [] { return 9; };
  EXPECT_EQ(gpu_problem(nvml, "0000:1B:00.0"), "");
  EXPECT_EQ(gpu_problem(Nvml(), "0000:1B:00.0"), "");
}

}  // namespace
}  // namespace hyperslab::run
