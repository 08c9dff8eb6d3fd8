// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/threads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cores.hpp"
#include "hyperslab/comm/memory_limit.hpp"
#include "support/temp_folder.hpp"
#include "support/thread_peers.hpp"

namespace hyperslab::test {
namespace {

using comm::CoreLimits;
using comm::CpuQuota;
using comm::ThreadShare;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

CoreLimits on(const std::string& cores, int machine_cores = 8) {
  CoreLimits limits;
  limits.machine = "host";
  limits.machine_cores = machine_cores;
  limits.cores = comm::cores_of_list(cores);
  return limits;
}

CoreLimits with_quota(CoreLimits limits, const std::string& group, double cores) {
  limits.quotas.push_back({group, cores});
  return limits;
}

CoreLimits asking(CoreLimits limits, int threads) {
  limits.requested_threads = threads;
  return limits;
}

std::vector<int> threads_of(const std::vector<CoreLimits>& ranks) {
  std::vector<int> threads;
  for (const ThreadShare& share : share_cores(ranks)) threads.push_back(share.threads);
  return threads;
}

std::vector<CoreLimits> ranks(int count, const CoreLimits& limits) {
  std::vector<CoreLimits> equal;
  equal.assign(static_cast<std::size_t>(count), limits);
  return equal;
}

TEST(Threads, OneRankHasAllCores) {
  EXPECT_THAT(threads_of({on("0-7")}), ElementsAre(8));
  EXPECT_THAT(threads_of({on("2,5-6")}), ElementsAre(3));
}

TEST(Threads, RanksOnTheSameCoresShareThem) {
  EXPECT_THAT(threads_of(ranks(4, on("0-7"))), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(threads_of(ranks(3, on("0-7"))), ElementsAre(2, 2, 2));
  EXPECT_THAT(threads_of(ranks(3, on("0-2"))), ElementsAre(1, 1, 1));
  EXPECT_THAT(threads_of(ranks(7, on("0-48"))), testing::Each(7));  // 49 times 1/7
}

TEST(Threads, BoundRanksKeepTheirCores) {
  EXPECT_THAT(threads_of({on("0-3"), on("4-7")}), ElementsAre(4, 4));
  EXPECT_THAT(threads_of({on("0"), on("1")}), ElementsAre(1, 1));
  EXPECT_THAT(threads_of({on("0-1"), on("2-3"), on("0-1"), on("2-3")}), ElementsAre(1, 1, 1, 1));
}

TEST(Threads, PartlySharedCores) {
  // cores 0-1 are shared by two ranks, 2-7 belong to the first
  EXPECT_THAT(threads_of({on("0-7"), on("0-1")}), ElementsAre(7, 1));
}

TEST(Threads, MoreRanksThanCores) {
  const std::vector<ThreadShare> shares = share_cores(ranks(4, on("0-1", 2)));

  EXPECT_THAT(threads_of(ranks(4, on("0-1", 2))), ElementsAre(1, 1, 1, 1));
  EXPECT_TRUE(shares.front().more_ranks_than_cores());
  EXPECT_EQ(shares.front().open_cores_here, 2);
  EXPECT_EQ(shares.front().threads_here, 4);
  EXPECT_FALSE(share_cores(ranks(2, on("0-1", 2))).front().more_ranks_than_cores());
}

TEST(Threads, QuotasAreSharedByTheirControlGroup) {
  const CoreLimits half = with_quota(on("0-7"), "a", 4);

  EXPECT_THAT(threads_of({half}), ElementsAre(4));
  EXPECT_THAT(threads_of({half, half}), ElementsAre(2, 2));
  EXPECT_THAT(threads_of({with_quota(on("0-7"), "a", 2.5)}), ElementsAre(3));  // not idle for half
  EXPECT_THAT(threads_of({with_quota(on("0-7"), "a", 0.5)}), ElementsAre(1));
  // the mask is the smaller one
  EXPECT_THAT(threads_of({with_quota(on("0"), "a", 6)}), ElementsAre(1));
  // of two containers each has its own, and the group above them another
  EXPECT_THAT(threads_of({half, with_quota(on("0-7"), "b", 3)}), ElementsAre(4, 3));
  EXPECT_THAT(threads_of({with_quota(half, "both", 2), with_quota(on("0-7"), "both", 2)}),
              ElementsAre(1, 1));
  EXPECT_TRUE(share_cores(ranks(3, with_quota(on("0-7"), "a", 2))).front().more_ranks_than_cores());
}

TEST(Threads, MachinesDoNotShare) {
  CoreLimits other = on("0-7");
  other.machine = "other";

  EXPECT_THAT(threads_of({on("0-7"), other, other}), ElementsAre(8, 4, 4));
  const ThreadShare share = comm::share_cores({on("0-7"), other, other}).front();
  EXPECT_EQ(share.ranks_here, 1);
  EXPECT_THAT(describe(share), HasSubstr("threads: 4 to 8 a rank; 1 rank on 8 cores"));
}

TEST(Threads, OmpNumThreadsDecides) {
  EXPECT_THAT(threads_of(ranks(2, asking(on("0-7"), 3))), ElementsAre(3, 3));
  EXPECT_THAT(threads_of(ranks(2, asking(on("0-7"), 16))), ElementsAre(16, 16));
}

TEST(Threads, WarningOfTooManyThreads) {
  const auto warning = [](const std::vector<CoreLimits>& all) {
    return warning_of(share_cores(all).front());
  };

  EXPECT_THAT(warning(ranks(4, asking(on("0-1", 2), 2))),
              HasSubstr("OMP_NUM_THREADS asks for 2 threads a rank: 8 threads on 2 cores"));
  EXPECT_THAT(warning(ranks(4, asking(on("0-7"), 4))), HasSubstr("unset it, or set it to 2"));
  EXPECT_THAT(warning(ranks(4, asking(on("0-7"), 2))), IsEmpty());
  EXPECT_THAT(warning(ranks(4, asking(on("0-1", 2), 1))), IsEmpty());  // fewer there are not
  EXPECT_THAT(warning(ranks(4, on("0-1", 2))), IsEmpty());
  // more than the share, yet others leave cores free
  EXPECT_THAT(warning({asking(on("0-7"), 6), asking(on("0-7"), 1)}), IsEmpty());
}

TEST(Threads, ABusyMachineIsNamed) {
  const auto line = [](const std::vector<double>& loads) {
    std::vector<CoreLimits> all;
    for (const double load : loads) {
      all.push_back(on("0-1", 2));
      all.back().machine = "host" + std::to_string(all.size());
      all.back().load = load;
    }
    return busy_line(share_cores(all).front());
  };

  EXPECT_THAT(line({0}), IsEmpty());
  EXPECT_THAT(line({2}), IsEmpty());
  EXPECT_EQ(
      line({22.34}),
      "busy machine: its load of the last minute is 22.3 on 2 cores; other programs slow down "
      "this one and its times vary");
  EXPECT_THAT(line({0.5, 3, 1}), HasSubstr("is 3.0 on 2 cores"));
}

TEST(Threads, TheLineSaysWhy) {
  const auto line = [](const std::vector<CoreLimits>& all, std::optional<bool> yields = {}) {
    ThreadShare share = share_cores(all).front();
    share.yields = yields;
    return describe(share);
  };

  EXPECT_EQ(line(ranks(4, on("0-7"))), "threads: 2 a rank; 4 ranks on 8 cores");
  EXPECT_EQ(line({on("0", 1)}), "threads: 1 a rank; 1 rank on 1 core");
  EXPECT_EQ(line(ranks(2, asking(on("0-7"), 3))),
            "threads: 3 a rank, as OMP_NUM_THREADS says; 2 ranks on 8 cores");
  EXPECT_THAT(
      line({on("0", 64), on("1", 64)}),
      HasSubstr("2 ranks on 1 core of their own each, 2 cores of this host's 64 (the others "
                "are closed to them by mpirun's or srun's binding"));
  EXPECT_THAT(line(ranks(2, with_quota(on("0-63", 64), "a", 4))),
              HasSubstr("threads: 2 a rank; 2 ranks on 4 cores of this host's 64"));
  EXPECT_EQ(line(ranks(4, on("0-1", 2)), true),
            "threads: 1 a rank; 4 ranks on 2 cores; more ranks than cores: they yield while they "
            "wait");
  EXPECT_THAT(line(ranks(4, on("0-1", 2)), false),
              HasSubstr("they do not yield while they wait: set OMPI_MCA_mpi_yield_when_idle=1"));
  EXPECT_THAT(line(ranks(2, on("0-1", 2)), true), Not(HasSubstr("yield")));
}

TEST(Threads, LimitsTravelAsText) {
  CoreLimits sent = with_quota(with_quota(asking(on("0-3,8,10-11", 16), 5), "a", 2.5), "b", 1);
  sent.load = 2.25;

  const CoreLimits found = comm::limits_of_text(comm::to_text(sent));

  EXPECT_EQ(found.machine, "host");
  EXPECT_EQ(found.machine_cores, 16);
  EXPECT_EQ(found.requested_threads, 5);
  EXPECT_EQ(found.load, 2.25);
  EXPECT_EQ(comm::core_list(found.cores), "0-3,8,10-11");
  ASSERT_EQ(found.quotas.size(), 2U);
  EXPECT_EQ(found.quotas[0].group, "a");
  EXPECT_EQ(found.quotas[0].cores, 2.5);
  EXPECT_EQ(found.quotas[1].cores, 1);
}

/// A folder of a process in /proc, and control groups elsewhere.
class ControlGroups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// `mount`: root and folder of the mount, type and options of the file system.
  void mount(const std::string& root, const std::string& target, const std::string& type_options) {
    mounts_ += "30 23 0:26 " + root + " " + folder_.path() + "/" + target +
               " rw,nosuid shared:9 - " + type_options + "\n";
    write("proc/mountinfo", mounts_);
  }
  [[nodiscard]] std::vector<double> quotas() {
    std::vector<double> cores;
    for (const CpuQuota& quota : comm::cpu_quotas(folder_.path() + "/proc")) {
      cores.push_back(quota.cores);
    }
    return cores;
  }
  /// Limits of control groups follow the host's, the innermost first.
  [[nodiscard]] std::vector<std::size_t> rooms() const {
    std::vector<std::size_t> bytes;
    for (const comm::MemoryLimit& limit : limits()) bytes.push_back(limit.room_bytes);
    bytes.erase(bytes.begin());
    return bytes;
  }
  [[nodiscard]] std::vector<comm::MemoryLimit> limits() const {
    return comm::memory_limits("n1", folder_.path() + "/proc");
  }
  TempFolder folder_;
  std::string mounts_ = "22 1 8:1 / / rw - ext4 /dev/sda rw\n";
};

TEST_F(ControlGroups, SecondVersionWithItsParents) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("proc/cgroup", "0::/job/step/task\n");
  write("sys/job/cpu.max", "400000 100000\n");
  write("sys/job/step/cpu.max", "max 100000\n");
  write("sys/job/step/task/cpu.max", "150000 100000\n");
  write("sys/other/cpu.max", "100000 100000\n");

  EXPECT_THAT(quotas(), ElementsAre(1.5, 4));
}

TEST_F(ControlGroups, SecondVersionInAContainer) {
  mount("/", "sys", "cgroup2 cgroup rw");
  write("proc/cgroup", "0::/\n");
  write("sys/cpu.max", "200000 100000\n");

  EXPECT_THAT(quotas(), ElementsAre(2));
}

TEST_F(ControlGroups, FirstVersion) {
  mount("/", "memory", "cgroup cgroup rw,memory");
  mount("/", "cpu", "cgroup cgroup rw,cpu,cpuacct");
  write("proc/cgroup", "4:memory:/m\n3:cpu,cpuacct:/slurm/job\n1:name=systemd:/\n");
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/slurm/job/cpu.cfs_quota_us", "350000\n");
  write("cpu/slurm/job/cpu.cfs_period_us", "100000\n");

  EXPECT_THAT(quotas(), ElementsAre(3.5));
}

TEST_F(ControlGroups, FirstVersionInAContainer) {
  // the process sees its group's whole path, but only the group's folder
  mount("/docker/1234", "cpu", "cgroup cgroup rw,cpu");
  write("proc/cgroup", "3:cpu:/docker/1234\n");
  write("cpu/cpu.cfs_quota_us", "300000\n");
  write("cpu/cpu.cfs_period_us", "100000\n");

  EXPECT_THAT(quotas(), ElementsAre(3));
}

TEST_F(ControlGroups, NoneThatLimit) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("proc/cgroup", "0::/user\n");
  write("sys/user/cpu.max", "max 100000\n");

  EXPECT_THAT(quotas(), IsEmpty());
  EXPECT_THAT(comm::cpu_quotas(folder_.path() + "/nowhere"), IsEmpty());
}

TEST_F(ControlGroups, SiblingsHaveTheGroupAboveThemInCommon) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("sys/job/cpu.max", "400000 100000\n");
  const auto groups_of = [&](const std::string& task) {
    write("sys/job/" + task + "/cpu.max", "100000 100000\n");
    write("proc/cgroup", "0::/job/" + task + "\n");
    return comm::cpu_quotas(folder_.path() + "/proc");
  };

  const std::vector<CpuQuota> first = groups_of("first");
  const std::vector<CpuQuota> second = groups_of("second");

  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(second.size(), 2U);
  EXPECT_NE(first[0].group, second[0].group);
  EXPECT_EQ(first[1].group, second[1].group);
}

class Launchers : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const char* value) {
    setenv(name.c_str(), value, 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

TEST_F(Launchers, ReportRanksOfThisMachine) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE",
                           "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"}) {
    unsetenv(name);
  }
  EXPECT_EQ(comm::launched_ranks_here(), 0);

  set("SLURM_STEP_TASKS_PER_NODE", "2(x3),16,1");
  EXPECT_EQ(comm::launched_ranks_here(), 16);

  set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  EXPECT_EQ(comm::launched_ranks_here(), 4);
}

TEST_F(Launchers, ManyRanksAreACrowd) {
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "100000");
  EXPECT_TRUE(comm::seems_crowded());

  set("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_FALSE(comm::seems_crowded());
}

TEST_F(Launchers, OmpNumThreadsMayBeAList) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(comm::requested_threads(), 0);
  for (const auto& [text, threads] :
       std::vector<std::pair<const char*, int>>{{"3", 3}, {"4,2", 4}, {"", 0}, {"many", 0}}) {
    set("OMP_NUM_THREADS", text);
    EXPECT_EQ(comm::requested_threads(), threads) << text;
  }
}

TEST(CoreLimits, OfThisProcess) {
  const CoreLimits limits = comm::core_limits("host");

  EXPECT_FALSE(limits.cores.empty());
  EXPECT_GE(limits.machine_cores, 1);
  EXPECT_EQ(limits.machine.find(' '), std::string::npos);
}

TEST_F(ControlGroups, MemoryOfTheSecondVersion) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("proc/cgroup", "0::/job/step\n");
  EXPECT_THAT(rooms(), IsEmpty());

  write("sys/job/step/memory.max", "max\n");
  write("sys/job/step/memory.current", "500\n");
  EXPECT_THAT(rooms(), IsEmpty());

  write("sys/job/memory.max", "2000\n");
  write("sys/job/memory.current", "900\n");
  write("sys/job/memory.stat", "anon 500\ninactive_file 300\nactive_file 100\n");
  EXPECT_THAT(rooms(), ElementsAre(1500)) << "cached files give way";

  write("sys/job/step/memory.max", "1200\n");
  EXPECT_THAT(rooms(), ElementsAre(700, 1500));
  write("sys/job/step/memory.max", "400\n");
  EXPECT_THAT(rooms(), ElementsAre(0, 1500));
}

TEST_F(ControlGroups, MemoryOfTheFirstVersion) {
  mount("/", "memory", "cgroup cgroup rw,memory");
  mount("/", "cpu", "cgroup cgroup rw,cpu,cpuacct");
  write("proc/cgroup", "4:memory:/m\n3:cpu,cpuacct:/slurm/job\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("memory/memory.usage_in_bytes", "5000\n");
  EXPECT_THAT(rooms(), IsEmpty());

  write("memory/m/memory.limit_in_bytes", "4096\n");
  write("memory/m/memory.usage_in_bytes", "3000\n");
  write("memory/m/memory.stat", "inactive_file 2000\ntotal_inactive_file 1000\n");
  EXPECT_THAT(rooms(), ElementsAre(2096));
}

TEST_F(ControlGroups, MemoryOfTheHostComesFirst) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("proc/cgroup", "0::/job\n");
  write("sys/job/memory.max", "2000\n");
  write("sys/job/memory.current", "500\n");

  const std::vector<comm::MemoryLimit> found = limits();

  ASSERT_EQ(found.size(), 2U);
  EXPECT_GT(found[0].room_bytes, std::size_t{1} << 20U);
  EXPECT_EQ(found[0].place, "on host n1");
  EXPECT_EQ(found[1].place, "in control group " + folder_.path() + "/sys/job of host n1");
  EXPECT_NE(found[0].id, found[1].id);
  EXPECT_EQ(found[1].id.find(' '), std::string::npos);
}

/// Two containers see the same folder under two paths.
TEST_F(ControlGroups, OfTwoContainersAreTheSameByTheirFolder) {
  mount("/", "sys", "cgroup2 cgroup2 rw");
  write("sys/job/memory.max", "2000\n");
  write("sys/job/memory.current", "500\n");
  write("proc/cgroup", "0::/job\n");
  const std::string one = limits().at(1).id;
  std::filesystem::create_directory_symlink("job", folder_.path() + "/sys/other");
  write("proc/cgroup", "0::/other\n");

  EXPECT_EQ(limits().at(1).id, one);
}

comm::MemoryLimit limit(std::size_t room_bytes, const std::string& id) {
  return {room_bytes, id, "in " + id};
}

TEST(MemoryShortage, IsNoneIfTheRanksFitTogether) {
  const std::vector<comm::MemoryLimit> host = {limit(1000, "n1")};
  EXPECT_FALSE(comm::memory_shortage({{400, host}, {600, host}}));
  EXPECT_FALSE(comm::memory_shortage({{400, {}}, {600, {}}})) << "without limits";
}

TEST(MemoryShortage, IsOfAllRanksOfAHost) {
  const std::vector<comm::MemoryLimit> first = {limit(1000, "n1")};
  const std::vector<comm::MemoryLimit> second = {limit(1000, "n2")};

  const auto shortage =
      comm::memory_shortage({{900, first}, {500, second}, {100, first}, {502, second}});

  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->limit.id, "n2");
  EXPECT_EQ(shortage->ranks, 2);
  EXPECT_EQ(shortage->needed_bytes, 1002U);
  EXPECT_EQ(shortage->fullest_rank, 3);
  EXPECT_EQ(shortage->fullest_bytes, 502U);
  EXPECT_EQ(shortage->fullest_room(), 500U);
}

TEST(MemoryShortage, OfRanksWithLimitsOfTheirOwn) {
  const auto shares = [](const std::string& own) {
    return std::vector<comm::MemoryLimit>{limit(5000, "n1"), limit(600, own)};
  };

  EXPECT_FALSE(comm::memory_shortage({{600, shares("a")}, {600, shares("b")}}));
  const auto own = comm::memory_shortage({{600, shares("a")}, {700, shares("b")}});
  ASSERT_TRUE(own);
  EXPECT_EQ(own->limit.id, "b");
  EXPECT_EQ(own->ranks, 1);
  const auto shared = comm::memory_shortage({{600, shares("a")}, {600, shares("a")}});
  ASSERT_TRUE(shared);
  EXPECT_EQ(shared->limit.id, "a");
}

TEST(MemoryShortage, IsTheWorstWithTheLeastRoomThatARankSaw) {
  const auto shortage = comm::memory_shortage(
      {{900, {limit(500, "n1"), limit(300, "a")}}, {100, {limit(490, "n1"), limit(310, "a")}}});

  ASSERT_TRUE(shortage);
  EXPECT_EQ(shortage->limit.id, "a");
  EXPECT_EQ(shortage->limit.room_bytes, 300U);
  EXPECT_EQ(shortage->fullest_room(), 270U);
}

TEST(MemoryShortage, IsTheSameOnEveryRank) {
  as_ranks_on({"n1", "n1", "n1"}, [](comm::Peers& peers) {
    const auto rank = static_cast<std::size_t>(peers.rank());
    const auto shortage = comm::memory_shortage(
        peers, {100 * (rank + 1), {{500, "boot", "on host n1"}, {900, "boot:1", "in a group"}}});

    ASSERT_TRUE(shortage);
    EXPECT_EQ(shortage->limit.place, "on host n1");
    EXPECT_EQ(shortage->ranks, 3);
    EXPECT_EQ(shortage->needed_bytes, 600U);
    EXPECT_EQ(shortage->fullest_rank, 2);
  });
}

}  // namespace
}  // namespace hyperslab::test
