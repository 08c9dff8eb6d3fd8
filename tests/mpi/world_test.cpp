// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "mpi/comm_test.hpp"

namespace hyperslab::test {
namespace {

TEST(World, KnowsItsPlace) {
  const char* launched = std::getenv("OMPI_COMM_WORLD_SIZE");

  EXPECT_EQ(world().size(), launched == nullptr ? 1 : std::atoi(launched));
  EXPECT_GE(world().rank(), 0);
  EXPECT_LT(world().rank(), world().size());
  EXPECT_EQ(world().local_size(), world().size()) << "all ranks of a test share a host";
  EXPECT_EQ(world().local_rank(), world().rank());
  EXPECT_FALSE(world().host().empty());
  EXPECT_FALSE(comm::library_version().empty());
}

TEST(World, DiesWithItsLauncherOnly) {
  int signal = -1;

  ASSERT_EQ(prctl(PR_GET_PDEATHSIG, &signal), 0);

  EXPECT_EQ(signal, std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr ? 0 : SIGKILL);
}

TEST(World, BroadcastsTexts) {
  for (int root = 0; root < world().size(); ++root) {
    for (const std::size_t length : {0, 1, 100000}) {
      const std::string text(length, static_cast<char>('a' + root));
      const std::string mine = world().rank() == root ? text : "something else";

      EXPECT_EQ(world().broadcast(mine, root), text);
    }
  }
}

TEST(World, GathersTextsInRankOrder) {
  const auto text_of = [](int rank) {
    return rank % 2 == 1 ? std::string() : std::string(static_cast<std::size_t>(rank) + 1, 'x');
  };

  const auto texts = world().all_gather(text_of(world().rank()));

  ASSERT_EQ(texts.size(), static_cast<std::size_t>(world().size()));
  for (int r = 0; r < world().size(); ++r) {
    EXPECT_EQ(texts[static_cast<std::size_t>(r)], text_of(r));
  }
}

TEST(World, CombinesNumbers) {
  const int last = world().size() - 1;

  EXPECT_TRUE(world().all(true));
  EXPECT_FALSE(world().all(world().rank() != last));
  EXPECT_EQ(world().max(-100 - world().rank()), -100);
  EXPECT_EQ(world().max(std::int64_t{1} << (40 + world().rank())), std::int64_t{1} << (40 + last));
  EXPECT_EQ(world().sum(0.5), 0.5 * world().size());
  world().barrier();
}

TEST(World, GivesACommunicatorForEachDevice) {
  const auto cpu = world().communicator(Device::cpu, "step");
  const auto meta = world().communicator(Device::meta, "plan");

  EXPECT_EQ(cpu->device(), Device::cpu);
  EXPECT_EQ(cpu->name(), "step");
  EXPECT_EQ(cpu->rank(), world().rank());
  EXPECT_EQ(cpu->size(), world().size());
  EXPECT_EQ(meta->device(), Device::meta);
  EXPECT_EQ(meta->size(), world().size());
}

}  // namespace
}  // namespace hyperslab::test
