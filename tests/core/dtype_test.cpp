// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hyperslab {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.00390625F).bits, 0x3F80);  // half way between 0x3F80 and 0x3F81: even
  EXPECT_EQ(to_bf16(1.01171875F).bits, 0x3F82);  // half way between 0x3F81 and 0x3F82: even
  EXPECT_EQ(to_bf16(1.00390637F).bits, 0x3F81);  // just above half way
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST(F16, RoundTripsEveryBitPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
    } else {
      ASSERT_EQ(to_f16(wide).bits, value.bits) << "bits " << bits;
    }
  }
}

TEST(F16, RoundsToNearestEvenAndOverflows) {
  EXPECT_EQ(to_f16(1.0F).bits, 0x3C00);
  EXPECT_EQ(to_f16(1.00048828125F).bits, 0x3C00);  // half way: even
  EXPECT_EQ(to_f16(1.00146484375F).bits, 0x3C02);  // half way: even
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_f16(-65520.0F).bits, 0xFC00);
  EXPECT_EQ(to_f16(0x1p-24F).bits, 0x0001);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0x0000);  // half of the smallest: even
  EXPECT_EQ(to_f16(0x1.8p-24F).bits, 0x0002);
}

/// Adding 0.01 a thousand times: what the storage type of the sum and of the addend does.
TEST(Precision, FourWaysOfAddingAHundredth) {
  float all_f32 = 0;
  for (int i = 0; i < 1000; ++i) all_f32 += 0.01F;
  f16 all_f16 = to_f16(0);
  for (int i = 0; i < 1000; ++i) {
    all_f16 = to_f16(to_float(all_f16) + to_float(to_f16(0.01F)));
  }
  float mixed = 0;  // fp32 sum of an fp16 addend
  for (int i = 0; i < 1000; ++i) mixed += to_float(to_f16(0.01F));
  float converted = 0;  // the addend stored as fp16, widened before it is added
  for (int i = 0; i < 1000; ++i) {
    const f16 addend = to_f16(0.01F);
    converted += static_cast<float>(to_float(addend));
  }

  constexpr double kEightDecimals = 5e-9;
  EXPECT_NEAR(all_f32, 10.00013351, kEightDecimals);
  EXPECT_NEAR(to_float(all_f16), 9.95312500, kEightDecimals);
  EXPECT_NEAR(mixed, 10.00213623, kEightDecimals);
  EXPECT_NEAR(converted, 10.00213623, kEightDecimals);
}

}  // namespace
}  // namespace hyperslab
