// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "comm/comm_test.hpp"
#include "hyperslab/comm/gpus.hpp"

namespace hyperslab::test {
namespace {

TEST(World, KnowsItsRanks) {
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

TEST(World, GathersBytesOnOneRank) {
  for (int root = 0; root < world().size(); ++root) {
    for (const std::size_t message : {1, 3, 7, 1 << 30}) {
      const std::string mine(static_cast<std::size_t>(world().rank()) * 7,
                             static_cast<char>(world().rank()));

      const auto payloads = world().gather(mine, root, message);

      ASSERT_EQ(payloads.size(),
                world().rank() == root ? static_cast<std::size_t>(world().size()) : 0U);
      for (std::size_t r = 0; r < payloads.size(); ++r) {
        EXPECT_EQ(payloads[r], std::string(r * 7, static_cast<char>(r)));
      }
    }
  }
}

TEST(World, HasPartsInTheOrderOfItsRanks) {
  const int color = world().rank() % 2;
  const auto part = world().part(color);

  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->size(), (world().size() + 1 - color) / 2);
  EXPECT_EQ(part->rank(), world().rank() / 2);
  EXPECT_EQ(part->host(), world().host());
  EXPECT_EQ(part->local_rank(), world().local_rank());
  EXPECT_EQ(part->local_size(), world().local_size());
  part->barrier();
  EXPECT_EQ(part->broadcast(std::to_string(world().rank())), std::to_string(color));
  const auto texts = part->all_gather(std::to_string(world().rank()));
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(part->size()));
  for (int r = 0; r < part->size(); ++r) {
    EXPECT_EQ(texts[static_cast<std::size_t>(r)], std::to_string(2 * r + color));
  }
  EXPECT_EQ(part->all(color == 0), color == 0);
  EXPECT_EQ(part->max(world().rank()), 2 * (part->size() - 1) + color);
  EXPECT_EQ(part->sum(1.0), part->size());
  EXPECT_EQ(part->gather("x", part->size() - 1).size(),
            part->rank() == part->size() - 1 ? static_cast<std::size_t>(part->size()) : 0U);
}

TEST(World, PartsCommunicateApart) {
  Context ctx(Device::cpu);
  const auto part = world().part(world().rank() % 2);
  Tensor x = filled_tensor(DType::f32, {3}, world().rank());

  {
    const auto group = part->communicator(Device::cpu, comm::GroupRole::other);
    EXPECT_EQ(group->size(), part->size());
    group->wait(ctx, group->all_reduce(ctx, x.view(), comm::ReduceOp::sum));
    group->barrier();
  }
  double expected = 0;
  for (int r = world().rank() % 2; r < world().size(); r += 2) expected += r;

  EXPECT_EQ(to_doubles(x.view()), std::vector<double>(3, expected));
}

TEST(World, PartsHavePartsAndLeaveRanksOut) {
  const bool inside = world().rank() != world().size() - 1;
  const auto part = world().part(inside ? 5 : -1);

  ASSERT_EQ(part != nullptr, inside);
  if (part != nullptr) {
    EXPECT_EQ(part->size(), world().size() - 1);
    const auto alone = part->part(part->rank());
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->communicator(Device::cpu, comm::GroupRole::other)->size(), 1);
    EXPECT_EQ(alone->gather("mine"), std::vector<std::string>{"mine"});
  }
  world().barrier();
}

TEST(World, TwoRanksOnOneGpuAreNamed) {
  comm::require_distinct_gpus(world(), "0000:1B:00." + std::to_string(world().rank()));
  comm::require_one_nccl(world());
  if (world().size() == 1) return;
  const int last = world().size() - 1;
  const std::string bus = world().rank() == last ? "0000:1B:00.0" : std::to_string(world().rank());

  try {
    comm::require_distinct_gpus(world(), world().rank() == 0 ? "0000:1B:00.0" : bus);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_TRUE(error.is_on_all_ranks());
    EXPECT_THAT(error.what(), testing::HasSubstr("ranks 0 and " + std::to_string(last)));
    EXPECT_THAT(error.what(), testing::HasSubstr("GPU at 0000:1B:00.0"));
    EXPECT_THAT(error.what(), testing::HasSubstr(world().host()));
  }
}

TEST(World, DeterminismHoldsNcclToItsRing) {
  ::unsetenv("NCCL_ALGO");
  world().set_deterministic();
  EXPECT_STREQ(std::getenv("NCCL_ALGO"), "Ring");
  ::setenv("NCCL_ALGO", "ring", 1);
  world().set_deterministic();

  ::setenv("NCCL_ALGO", "Tree", 1);
  EXPECT_THROW(world().set_deterministic(), Error);
  ::unsetenv("NCCL_ALGO");
}

TEST(World, GivesACommunicatorForEachDevice) {
  const auto cpu = world().communicator(Device::cpu, comm::GroupRole::world);
  const auto meta = world().communicator(Device::meta, comm::GroupRole::other);

  EXPECT_EQ(cpu->device(), Device::cpu);
  EXPECT_EQ(cpu->name(), "world");
  EXPECT_EQ(cpu->rank(), world().rank());
  EXPECT_EQ(cpu->size(), world().size());
  EXPECT_EQ(meta->device(), Device::meta);
  EXPECT_EQ(meta->size(), world().size());
}

}  // namespace
}  // namespace hyperslab::test
