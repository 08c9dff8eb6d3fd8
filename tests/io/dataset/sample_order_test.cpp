// SPDX-License-Identifier: Apache-2.0
// The order of samples beside tests/golden/sample_order.csv, which analysis/compare/samples.py, a
// second implementation, is tested against too.
#include <fstream>
#include <sstream>

#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

TEST(SampleOrder, IsThatOfTheGoldenFile) {
  std::ifstream file(HYPERSLAB_GOLDEN "/sample_order.csv");
  std::string line;
  std::getline(file, line);
  ASSERT_EQ(line, "sampling,tokens,length,seed,sample,start");
  int rows = 0;
  for (; std::getline(file, line); ++rows) {
    std::istringstream cells(line);
    std::string sampling;
    std::array<std::int64_t, 5> cell{};  // tokens, length, seed, sample, start
    char comma = 0;
    std::getline(cells, sampling, ',');
    for (std::int64_t& value : cell) {
      cells >> value;
      cells >> comma;
    }
    const Counting source(cell[0]);
    const auto kind = sampling == "windows" ? io::Sampling::windows : io::Sampling::blocks;
    const io::TokenSamples samples(source, kind, cell[1], static_cast<std::uint64_t>(cell[2]));

    EXPECT_EQ(samples.start(cell[3]), cell[4]) << line;
  }
  EXPECT_GT(rows, 50);
}

}  // namespace
}  // namespace hyperslab::test
