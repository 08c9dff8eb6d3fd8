// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/printable.hpp"

#include <gtest/gtest.h>

namespace hyperslab {
namespace {

TEST(Printable, ControlCharactersBecomeQuestionMarks) {
  EXPECT_EQ(printable("a\x1B[31mb\x7F\r"), "a?[31mb??");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "?31m");
  EXPECT_EQ(printable("a\nb"), "a?b");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
}

TEST(Printable, MarksOfDirectionAndLinesBecomeQuestionMarks) {
  for (const char* const mark :
       {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069"}) {
    EXPECT_EQ(printable(std::string("a") + mark + "b", true), "a?b");
  }
  for (const char* const other :
       {"\u061b", "\u200d", "\u2027", "\u202f", "\u2065", "\u206a", "\xE2", "\xE2\x80"}) {
    EXPECT_EQ(printable(other), other);
  }
}

TEST(Printable, TextStaysAsItIs) {
  EXPECT_EQ(printable("\xC3\xA9 \xC2\xA0 \xE2\x82\xAC"), "\xC3\xA9 \xC2\xA0 \xE2\x82\xAC");
  EXPECT_EQ(printable("a\n\tb", true), "a\n\tb");
}

}  // namespace
}  // namespace hyperslab
