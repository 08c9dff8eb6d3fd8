// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/fault.hpp"

#include <gtest/gtest.h>

#include <cerrno>

#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

TEST(Fault, NothingFailsWithoutAnInjection) { EXPECT_EQ(fault::at("file.write", "/a"), 0); }

TEST(Fault, AnInjectionAnswersAsLongAsItLives) {
  {
    const fault::Injection injection([](std::string_view point, const std::string& subject) {
      return point == "file.write" && subject == "/a" ? ENOSPC : 0;
    });
    EXPECT_EQ(fault::at("file.write", "/a"), ENOSPC);
    EXPECT_EQ(fault::at("file.write", "/b"), 0);
    EXPECT_EQ(fault::at("file.sync", "/a"), 0);
  }
  EXPECT_EQ(fault::at("file.write", "/a"), 0);
}

TEST(Fault, ASecondInjectionIsRefusedAndChangesNothing) {
  const auto full = [](std::string_view /*point*/, const std::string& /*subject*/) {
    return ENOSPC;
  };
  const fault::Injection first(full);

  EXPECT_THROW(fault::Injection second(full), Error);
  EXPECT_EQ(fault::at("file.write", "/a"), ENOSPC);
}

}  // namespace
}  // namespace hyperslab
