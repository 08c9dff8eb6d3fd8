// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/resolution.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace hyperslab::train {
namespace {

/// (first + grid^2, 2): t^2 0.37 mod 5 of the grid's place t, and its opposite; 9 before the grid.
Tensor table_of(Dim first, Dim grid) {
  Tensor out(Device::cpu, DType::f32, {first + grid * grid, 2});
  const auto values = out.view().span<float>();
  for (std::size_t row = 0; row < values.size() / 2; ++row) {
    const double t = static_cast<double>(row) - static_cast<double>(first);
    const double value = t < 0 ? 9 : std::fmod(t * t * 0.37, 5);
    values[2 * row] = static_cast<float>(value);
    values[2 * row + 1] = static_cast<float>(-value);
  }
  return out;
}

struct Known {
  Dim from = 0;
  Dim to = 0;
  std::vector<double> values;
};

// torch.nn.functional.interpolate(t.view(1, 1, from, from), size=(to, to), mode="bicubic",
// antialias=True) of PyTorch 2.15 in float64.
const Known kKnown[] = {
    {2,
     3,
     {-0.115305, 0.038947, 0.193199, 0.666974, 1.295, 1.923026, 1.449252, 2.551053, 3.652853}},
    {5,
     3,
     {1.636828, 2.345428, 3.032852, 3.652633, 3.463745, 3.387431, 3.44071, 3.160383, 2.900686}},
    {3,
     4,
     {-0.20087, 0.079223, 0.748434, 1.387225, 2.16762, 0.940852, 1.458885, 3.396958, 3.652696,
      2.27475, 2.572583, 4.359478, 3.323345, 3.24468, 3.391335, 3.671369}}};

TEST(Resolution, PositionsAreResampledAsByPyTorch) {
  for (const Known& known : kKnown) {
    for (const Dim first : {0, 1}) {
      SCOPED_TRACE(std::to_string(known.from) + " to " + std::to_string(known.to));

      const Tensor found =
          resampled_positions(table_of(first, known.from).view(), first, known.from, known.to);

      ASSERT_EQ(found.view().shape(), Shape({first + known.to * known.to, 2}));
      const auto values = found.view().span<float>();
      for (std::size_t i = 0; i < known.values.size(); ++i) {
        const std::size_t at = 2 * (static_cast<std::size_t>(first) + i);
        EXPECT_NEAR(values[at], known.values[i], 2e-6);
        EXPECT_EQ(values[at + 1], -values[at]);
      }
      if (first == 1) {
        EXPECT_EQ(values[0], 9);
      }
    }
  }
}

TEST(Resolution, AnEqualGridStaysAsItIs) {
  const Tensor table = table_of(1, 3);
  const Tensor found = resampled_positions(table.view(), 1, 3, 3);
  EXPECT_TRUE(std::ranges::equal(found.view().span<float>(), table.view().span<float>()));
}

}  // namespace
}  // namespace hyperslab::train
