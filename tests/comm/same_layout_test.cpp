// SPDX-License-Identifier: Apache-2.0
#include "same_layout.hpp"

#include "comm/comm_test.hpp"

namespace hyperslab::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Taken {
  Dim elements;
  std::string label;
};
using AllTaken = std::vector<Taken>;

bool is_last() { return world().rank() == world().size() - 1; }

/// Of arenas from which every rank took so much.
std::string difference(const AllTaken& taken, std::size_t arena_bytes = 4096) {
  Arena arena("scratch", Device::cpu, arena_bytes);
  for (const Taken& each : taken) (void)arena.take(DType::bf16, {each.elements}, each.label);
  return comm::layout_difference(MPI_COMM_WORLD, "tensor", arena);
}

/// The first and the last rank's part of the message.
auto reports(const std::string& first, const std::string& last) {
  return AllOf(HasSubstr("member 0 has " + first + ","),
               HasSubstr("member " + std::to_string(world().size() - 1) + " has " + last));
}

TEST(SameLayout, IsFoundAlike) {
  EXPECT_EQ(difference({}), "");
  EXPECT_EQ(difference({{10, "norm"}, {300, "attention"}}), "");
}

TEST(SameLayout, NamesTheFirstAllocationThatDiffersOnAllMembers) {
  if (world().size() == 1) GTEST_SKIP() << "there is no other member";

  const std::string by_size =
      difference({{10, "norm"}, {is_last() ? 300 : 301, "attention"}, {5, "mlp"}});
  const std::string by_name = difference({{10, is_last() ? "norm" : "head"}, {300, "attention"}});
  const std::string by_order =
      difference(is_last() ? AllTaken{{10, "a"}, {10, "b"}} : AllTaken{{10, "b"}, {10, "a"}});

  EXPECT_THAT(by_size, HasSubstr("their arenas scratch differ:"));
  EXPECT_THAT(by_size, reports("602 bytes at byte 256 for attention",
                               "600 bytes at byte 256 for attention"));
  EXPECT_THAT(by_name, reports("20 bytes at byte 0 for head", "20 bytes at byte 0 for norm"));
  EXPECT_THAT(by_order, reports("20 bytes at byte 0 for b", "20 bytes at byte 0 for a"));
}

TEST(SameLayout, ComparesNumbersOfAllocationsAndSizesOfArenas) {
  if (world().size() == 1) GTEST_SKIP() << "there is no other member";

  const std::string by_number =
      difference(is_last() ? AllTaken{{10, "norm"}} : AllTaken{{10, "norm"}, {300, "attention"}});
  const std::string by_bytes = difference({{10, "norm"}}, is_last() ? 2048 : 4096);

  EXPECT_THAT(by_number, reports("600 bytes at byte 256 for attention", "the end at byte 4096"));
  EXPECT_THAT(by_bytes, reports("the end at byte 4096", "the end at byte 2048"));
}

}  // namespace
}  // namespace hyperslab::test
