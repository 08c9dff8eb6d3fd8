// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "broken_memory_rules.hpp"
#include "decks.hpp"

namespace hyperslab::deck::test {
namespace {

class MemoryRules : public testing::TestWithParam<BrokenOverrides> {};

TEST_P(MemoryRules, AreRefusedWithTheirReason) {
  EXPECT_THAT(refusal(kValid, GetParam().overrides), testing::EndsWith(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Table, MemoryRules, testing::ValuesIn(broken_memory_rules()));

TEST(Memory, KeysOfPiecesAreRead) {
  const auto config =
      read(kValid, {"memory.recompute=full", "memory.mlp_rows=64", "memory.loss_rows=32"});

  EXPECT_EQ(config.memory.mlp_rows, 64);
  EXPECT_EQ(config.memory.loss_rows, 32);
  EXPECT_EQ(read(to_yaml(config)).memory, config.memory);
  EXPECT_EQ(read(kValid).memory.mlp_rows, 0);
  EXPECT_EQ(read(kValid).memory.loss_rows, 0);
}

}  // namespace
}  // namespace hyperslab::deck::test
