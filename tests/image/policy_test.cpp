// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "parts.hpp"
#include "policy_tables.hpp"

namespace hyperslab::image {
namespace {

using Kind = ops::ImageOperationKind;
constexpr Dim kSize = 224;

ops::ImageAugmentation drawn(const AugmentConfig& config, std::uint64_t index) {
  ops::ImageAugmentation out;
  draw_jitter(config, 9, index, out);
  draw_policy(config, 9, index, kSize, out);
  return out;
}

TEST(Jitter, ComesInEveryOrderWithinItsLimits) {
  AugmentConfig config;
  config.brightness = 0.4;
  config.contrast = 0.3;
  config.saturation = 2;
  std::set<std::vector<Kind>> orders;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const ops::ImageAugmentation found = drawn(config, i);
    ASSERT_EQ(found.operation_count, 3);
    std::vector<Kind> order;
    for (int k = 0; k < 3; ++k) {
      const ops::ImageOperation& operation = found.operations[k];
      order.push_back(operation.kind);
      const std::map<Kind, float> most = {
          {Kind::brightness, 0.4F}, {Kind::contrast, 0.3F}, {Kind::saturation, 2.0F}};
      EXPECT_GE(operation.factor, std::max(0.0F, 1 - most.at(operation.kind)) - 1e-6F);
      EXPECT_LE(operation.factor, 1 + most.at(operation.kind) + 1e-6F);
    }
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6U);
}

TEST(RandAugment, DrawsEveryOperationAlike) {
  AugmentConfig config;
  config.policy = Policy::randaugment;
  config.policy_operations = 2;
  config.policy_magnitude = 15;
  std::map<Kind, int> counts;
  int total = 0;
  constexpr std::uint64_t kCount = 7000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const ops::ImageAugmentation found = drawn(config, i);
    EXPECT_LE(found.operation_count, 2);
    total += found.operation_count;
    for (int k = 0; k < found.operation_count; ++k) ++counts[found.operations[k].kind];
  }

  EXPECT_NEAR(total, 2 * kCount * 13 / 14.0, 200);  // the 14th is to do nothing
  EXPECT_NEAR(counts[Kind::affine], 5000, 250);     // five of them
  EXPECT_NEAR(counts[Kind::equalize], 1000, 150);
  EXPECT_EQ(counts.count(Kind::invert), 0U);
}

TEST(RandAugment, StrengthsAreThoseOfTheMiddleBin) {
  AugmentConfig config;
  config.policy = Policy::randaugment;
  config.policy_operations = 1;
  config.policy_magnitude = 15;  // half of the most
  std::set<std::int32_t> shears;
  std::set<std::int32_t> shifts;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const ops::ImageAugmentation found = drawn(config, i);
    if (found.operation_count == 0) continue;
    const ops::ImageOperation& operation = found.operations[0];
    if (operation.kind == Kind::posterize) {
      EXPECT_EQ(operation.level, 6);
    }
    if (operation.kind == Kind::solarize) {
      EXPECT_EQ(operation.level, 128);
    }
    if (operation.kind == Kind::brightness) {
      EXPECT_NEAR(std::abs(operation.factor - 1), 0.45, 1e-6);
    }
    if (operation.kind != Kind::affine || operation.matrix[3] != 0) continue;
    if (operation.matrix[1] != 0) shears.insert(operation.matrix[1]);
    if (operation.matrix[1] == 0 && operation.matrix[5] == 32768) {
      shifts.insert(operation.matrix[2] - 32768);
    }
  }
  EXPECT_EQ(shears, (std::set<std::int32_t>{-9830, 9830}));              // 0.15
  EXPECT_EQ(shifts, (std::set<std::int32_t>{-50 * 65536, 50 * 65536}));  // 50.75 cut off
}

TEST(Policy, WhatShiftsAndRotationsUncoverHasTheFill) {
  AugmentConfig config;
  config.policy = Policy::autoaugment_imagenet;
  config.policy_fill = 128;
  int affine = 0;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const ops::ImageAugmentation found = drawn(config, i);
    for (int k = 0; k < found.operation_count; ++k) {
      if (found.operations[k].kind != Kind::affine) continue;
      EXPECT_EQ(found.operations[k].level, 128);
      ++affine;
    }
  }
  EXPECT_GT(affine, 30);
}

TEST(AutoAugment, TablesHaveTheirCorners) {
  using enum PolicyOperation;
  const auto is = [](const PolicyStep& step, PolicyOperation operation, double probability,
                     int magnitude) {
    return step.operation == operation && step.probability == probability &&
           step.magnitude == magnitude;
  };
  EXPECT_TRUE(is(policy_tables::kCifar10[0][1], contrast, 0.2, 6));
  EXPECT_TRUE(is(policy_tables::kCifar10[1][1], translate_x, 0.3, 9));
  EXPECT_TRUE(is(policy_tables::kImageNet[0][0], posterize, 0.4, 8));
  EXPECT_TRUE(is(policy_tables::kImageNet[18][0], shear_x, 0.6, 5));
}

TEST(AutoAugment, OperationsComeAsOftenAsTheTablesSay) {
  for (const auto& [policy, table] :
       {std::pair(Policy::autoaugment_cifar10, &policy_tables::kCifar10),
        std::pair(Policy::autoaugment_imagenet, &policy_tables::kImageNet)}) {
    AugmentConfig config;
    config.policy = policy;
    double expected = 0;
    for (const SubPolicy& pair : *table) {
      for (const PolicyStep& step : pair) {
        expected += step.operation == PolicyOperation::equalize ? step.probability / 25 : 0;
      }
    }
    int found = 0;
    constexpr int kCount = 5000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      const ops::ImageAugmentation augmentation = drawn(config, i);
      for (int k = 0; k < augmentation.operation_count; ++k) {
        found += augmentation.operations[k].kind == Kind::equalize ? 1 : 0;
      }
    }
    EXPECT_NEAR(static_cast<double>(found) / kCount, expected, 0.04);
  }
}

}  // namespace
}  // namespace hyperslab::image
