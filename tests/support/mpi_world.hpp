// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/comm/world.hpp"

namespace hyperslab::test {

/// The world of a test program with RANKS. Every rank runs every test. A failed EXPECT on any rank
/// fails the program; a failed ASSERT, or an exception, on any rank ends all of them at once.
[[nodiscard]] comm::World& world();

}  // namespace hyperslab::test
