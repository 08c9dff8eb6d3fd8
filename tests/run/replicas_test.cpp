// SPDX-License-Identifier: Apache-2.0
#include "replicas.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hyperslab::run {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<ReplicaSum> sums(const std::vector<std::uint64_t>& values) {
  std::vector<ReplicaSum> all;
  for (const std::uint64_t value : values) {
    all.push_back({{.whole = value}, "host" + std::to_string(all.size() / 2)});
  }
  return all;
}

TEST(Replicas, AlikeAreNoProblem) {
  EXPECT_EQ(differing_replicas({.data = 3}, sums({7, 7, 7})), "");
  EXPECT_EQ(differing_replicas({.data = 2, .tensor = 2}, sums({7, 8, 7, 8})), "");
  EXPECT_EQ(differing_replicas({}, sums({7})), "");
}

TEST(Replicas, TheMinorityIsNamedWithItsHost) {
  const std::string text = differing_replicas({.data = 4}, sums({7, 7, 9, 7}));

  EXPECT_THAT(text, HasSubstr("rank 2 (data 2, tensor 0, pipeline 0) on host host1 differs"));
  EXPECT_THAT(text, HasSubstr("the other 3 of 4"));
  EXPECT_THAT(text, Not(HasSubstr("rank 3")));
}

TEST(Replicas, TwoCannotShowWhichIsWrong) {
  const std::string text = differing_replicas({.data = 2, .pipeline = 2}, sums({1, 2, 3, 2}));

  EXPECT_THAT(text, HasSubstr("rank 0"));
  EXPECT_THAT(text, HasSubstr("rank 2"));
  EXPECT_THAT(text, HasSubstr("cannot show"));
  EXPECT_THAT(text, Not(HasSubstr("rank 1")));
}

TEST(Replicas, EveryPlaceIsComparedForItself) {
  const std::string text = differing_replicas({.data = 3, .tensor = 2}, sums({1, 2, 1, 5, 4, 2}));

  EXPECT_THAT(text, HasSubstr("rank 3"));
  EXPECT_THAT(text, HasSubstr("rank 4"));
  EXPECT_THAT(text, HasSubstr("; "));
}

TEST(Replicas, CopiesOfShardsAreComparedAmongEachOther) {
  const mesh::ParallelConfig hybrid = {.data = 4, .zero = 3, .shard = 2};
  std::vector<ReplicaSum> all = sums({7, 7, 7, 7});
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].sums.shards = rank % 2;
  EXPECT_EQ(differing_replicas(hybrid, all), "");
  all[3].sums.shards = 9;
  const std::string text = differing_replicas(hybrid, all);
  EXPECT_THAT(text, HasSubstr("rank 1 (data 1"));
  EXPECT_THAT(text, HasSubstr("rank 3 (data 3"));
  EXPECT_THAT(text, Not(HasSubstr("rank 0")));
  EXPECT_EQ(differing_replicas({.data = 4, .zero = 3}, all), "");  // each has a shard of its own
}

TEST(Replicas, ExpertsAreComparedAmongTheRanksThatHoldThem) {
  const mesh::ParallelConfig parallel = {.data = 4, .context = 2, .expert = 2};
  std::vector<ReplicaSum> all = sums({7, 7, 7, 7, 7, 7, 7, 7});
  for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank].sums.experts = rank / 2 % 2;
  EXPECT_EQ(differing_replicas(parallel, all), "");
  all[6].sums.experts = 0;  // as the other experts' ranks have
  const std::string text = differing_replicas(parallel, all);
  EXPECT_THAT(text, HasSubstr("rank 6 (data 3 (expert 1), tensor 0, pipeline 0, context 0)"));
  EXPECT_THAT(text, HasSubstr("the other 3 of 4"));
}

}  // namespace
}  // namespace hyperslab::run
