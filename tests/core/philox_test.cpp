// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "hyperslab/core/philox_normal.hpp"

namespace hyperslab {
namespace {

TEST(Philox, KnownAnswers) {
  // Random123's kat_vectors for philox4x32-10.
  const PhiloxCounter zero = philox({{0, 0, 0, 0}}, 0);
  EXPECT_EQ(zero.x[0], 0x6627E8D5U);
  EXPECT_EQ(zero.x[1], 0xE169C58DU);
  EXPECT_EQ(zero.x[2], 0xBC57AC4CU);
  EXPECT_EQ(zero.x[3], 0x9B00DBD8U);
  const std::uint32_t f = 0xFFFFFFFFU;
  const PhiloxCounter ones = philox({{f, f, f, f}}, ~0ULL);
  EXPECT_EQ(ones.x[0], 0x408F276DU);
  EXPECT_EQ(ones.x[1], 0x41C83B0EU);
  EXPECT_EQ(ones.x[2], 0xA20BC7C6U);
  EXPECT_EQ(ones.x[3], 0x6D5451FDU);
  const PhiloxCounter pi =
      philox({{0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U}}, 0x299F31D0A4093822ULL);
  EXPECT_EQ(pi.x[0], 0xD16CFE09U);
  EXPECT_EQ(pi.x[1], 0x94FDCCEBU);
  EXPECT_EQ(pi.x[2], 0x5001E420U);
  EXPECT_EQ(pi.x[3], 0x24126EA1U);
}

TEST(Normal, AgreesWithBoxMullerInDouble) {
  for (std::uint32_t i = 0; i < 100000; ++i) {
    const PhiloxCounter words = philox(philox_counter(i, 3), 17);
    float n0 = 0;
    float n1 = 0;
    philox_normal_pair(words.x[0], words.x[1], n0, n1);

    const double u0 = ((words.x[0] >> 8) + 1.0) * 0x1p-24;
    const double u1 = (words.x[1] >> 8) * 0x1p-24;
    const double radius = std::sqrt(-2.0 * std::log(u0));
    ASSERT_NEAR(n0, radius * std::cos(2 * M_PI * u1), 3e-6);
    ASSERT_NEAR(n1, radius * std::sin(2 * M_PI * u1), 3e-6);
  }
}

TEST(Normal, HasTheMomentsOfANormal) {
  std::vector<float> x(1 << 20);
  fill_normal(x.data(), 0, x.size(), 1, 2, 2.0F);
  double mean = 0;
  double square = 0;
  double fourth = 0;
  for (const float v : x) {
    const double z = v / 2.0;
    mean += z;
    square += z * z;
    fourth += z * z * z * z;
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(mean / n, 0, 5e-3);
  EXPECT_NEAR(square / n, 1, 6e-3);
  EXPECT_NEAR(fourth / n, 3, 5e-2);
}

TEST(FillNormal, EveryPartEqualsTheWhole) {
  std::vector<float> whole(101);
  fill_normal(whole.data(), 1000, whole.size(), 5, 6, 1.0F);
  for (std::size_t first = 0; first < whole.size(); first += 7) {
    std::vector<float> part(std::min<std::size_t>(13, whole.size() - first));
    fill_normal(part.data(), 1000 + first, part.size(), 5, 6, 1.0F);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[first + i]);
  }
}

TEST(FillNormal, StreamsAndSeedsDiffer) {
  float a = 0;
  float b = 0;
  float c = 0;
  fill_normal(&a, 0, 1, 1, name_hash("a"), 1.0F);
  fill_normal(&b, 0, 1, 1, name_hash("b"), 1.0F);
  fill_normal(&c, 0, 1, 2, name_hash("a"), 1.0F);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(PermutedIndex, IsAPermutationOfEverySize) {
  for (const std::uint64_t size : {1U, 2U, 3U, 5U, 16U, 17U, 1000U, 4097U}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t image = permuted_index(i, size, 42, 0);
      ASSERT_LT(image, size);
      seen.insert(image);
    }
    EXPECT_EQ(seen.size(), size);
  }
}

TEST(PermutedIndex, DependsOnSeedAndEpoch) {
  int same_epoch = 0;
  int same_seed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    same_epoch += permuted_index(i, 1000, 1, 0) == permuted_index(i, 1000, 2, 0) ? 1 : 0;
    same_seed += permuted_index(i, 1000, 1, 0) == permuted_index(i, 1000, 1, 1) ? 1 : 0;
  }
  EXPECT_LT(same_epoch, 20);
  EXPECT_LT(same_seed, 20);
}

}  // namespace
}  // namespace hyperslab
