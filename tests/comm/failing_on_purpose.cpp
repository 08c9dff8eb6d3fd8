// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "comm/comm_test.hpp"

// The last rank fails; CTest checks that the whole program then fails, and ends.
namespace hyperslab::test {
namespace {

bool is_last() { return world().rank() == world().size() - 1; }

TEST(Failing, Expect) { EXPECT_FALSE(is_last()); }

TEST(Failing, Assert) {
  ASSERT_FALSE(is_last());
  world().barrier();
}

TEST(Failing, Exception) {
  if (is_last()) throw std::runtime_error("on purpose");
  world().barrier();
}

TEST(Failing, Part) {
  const auto part = world().part(is_last() ? 1 : 0);
  if (is_last()) part->abort(1);
  world().barrier();
}

}  // namespace
}  // namespace hyperslab::test
