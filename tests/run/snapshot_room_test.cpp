// SPDX-License-Identifier: Apache-2.0
#include "snapshot_room.hpp"

#include <gtest/gtest.h>

namespace hyperslab::run {
namespace {

constexpr std::int64_t kMebibyte = 1 << 20;

TEST(SnapshotRoom, IsHalfOfWhatIsFree) {
  SnapshotRoom room{"n7", 100 * kMebibyte, 4, 1, 800 * kMebibyte};
  EXPECT_EQ(shortage(room), "");
  room.free_bytes -= 1;
  EXPECT_EQ(shortage(room), "host n7 has 800 MiB free, half of which is less than 4 x 100 MiB");
  room.free_bytes = 2400 * kMebibyte;
  room.copies = 3;
  EXPECT_EQ(shortage(room), "");
  room.ranks = 5;
  EXPECT_NE(shortage(room), "");
}

TEST(SnapshotRoom, CountsCopiesInMemoryBesideTheOneThatIsWritten) {
  io::CheckpointConfig config;
  EXPECT_EQ(copies_in_memory(config, true), 1);
  config.memory_every = 10;
  EXPECT_EQ(copies_in_memory(config, false), 3);
  EXPECT_EQ(copies_in_memory(config, true), 5);
}

}  // namespace
}  // namespace hyperslab::run
