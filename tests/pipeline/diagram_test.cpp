// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/diagram.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace hyperslab::test {
namespace {

using pipeline::diagram;
using pipeline::make_program;
using pipeline::Schedule;

TEST(Diagram, ShowsEveryPassInItsTime) {
  EXPECT_EQ(diagram(make_program(Schedule::one_forward_one_backward, 2, 1, 2)),
            "time 0 to 9\n"
            "rank 0 F0 F1 .  .  B0 =  .  B1 =\n"
            "rank 1 .  F0 B0 =  F1 B1 =  .  .\n");
}

TEST(Diagram, NamesChunksByLetters) {
  EXPECT_EQ(diagram(make_program(Schedule::forward_only, 2, 2, 2)),
            "time 0 to 5\n"
            "rank 0 F0a F1a F0b F1b .\n"
            "rank 1 .   F0a F1a F0b F1b\n");
}

TEST(Diagram, IsCutIntoPanelsOfTheLineWidth) {
  const std::string text = diagram(make_program(Schedule::zero_bubble, 16, 1, 32), 80);
  std::istringstream lines(text);
  std::size_t rows = 0;

  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U);
    EXPECT_FALSE(line.ends_with(' ')) << line;
    if (line.starts_with("rank ")) ++rows;
  }

  const std::size_t units = 3 * 32 + 15;
  const std::size_t columns = (80 - 7) / 4;
  EXPECT_EQ(rows, 16 * ((units + columns - 1) / columns));
}

}  // namespace
}  // namespace hyperslab::test
