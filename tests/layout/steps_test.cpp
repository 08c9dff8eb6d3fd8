// SPDX-License-Identifier: Apache-2.0
// The steps that movements take, with their bytes in closed form, and what is refused.
#include <gtest/gtest.h>

#include "movement_cases.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using layout::flat;
using layout::Movement;
using layout::owner;
using layout::partial;
using layout::shard;
using layout::Step;
using mesh::Mesh;

const Position kFirst({2, 4, 1, 1, 1, 2}, 0);  // replica 2, fold 4, tensor 2
// 90 elements: cut over fold and padded 4 x 32, over tensor and fold of each half of the first
// tensor 4 x 32 as well.
const std::vector<Shape> kTensors = {{16, 5}, {10}};
const std::vector<Shape> kMatrix = {{16, 8}};

Layout make(DType dtype, std::initializer_list<std::pair<AxisSet, Placement>> over,
            Home home = Home::device) {
  Layout layout = {.format = {dtype}, .home = home};
  for (const auto& [axes, placement] : over) layout = layout.with(axes, placement);
  return layout;
}
Layout f32(std::initializer_list<std::pair<AxisSet, Placement>> over) {
  return make(DType::f32, over);
}
Layout b16(std::initializer_list<std::pair<AxisSet, Placement>> over) {
  return make(DType::bf16, over);
}

/// The steps of a movement on rank 0, one a line.
std::string steps_of(const std::vector<Shape>& shapes, const Layout& from, const Layout& to) {
  const Mesh mesh = Mesh::plan(kFirst, groups_of(kFirst));
  std::string text;
  const Movement movement = Movement::plan(mesh, shapes, from, to);
  for (const Step& step : movement.steps()) {
    text += (text.empty() ? "" : "\n") + describe(step);
  }
  return text;
}

constexpr auto kReplica = Axis::replica;
constexpr auto kFold = Axis::fold;
constexpr auto kTensor = Axis::tensor;

TEST(Steps, SumsAreScatteredAndStayInTheirDtype) {
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}), f32({{kFold, flat()}})),
            "reduce_scatter over fold, 512 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}), b16({{kFold, flat()}})),
            "reduce_scatter over fold, 512 bytes\n"
            "cast, 64 bytes");
  EXPECT_EQ(steps_of(kMatrix, b16({{kFold, partial()}}), f32({{kFold, shard(0)}})),
            "reduce_scatter over fold, 256 bytes\n"
            "cast, 128 bytes");
  EXPECT_EQ(steps_of(kMatrix, f32({{kFold, partial()}}), f32({{kFold, shard(1)}})),
            "pack, 512 bytes\n"
            "reduce_scatter over fold, 512 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}), f32({})),
            "all_reduce over fold, 360 bytes\n"
            "copy, 360 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}), f32({{kFold, owner()}})),
            "all_reduce over fold, 360 bytes\n"
            "slice, 360 bytes");
}

TEST(Steps, HybridSumsAreScatteredFirst) {
  EXPECT_EQ(
      steps_of(kTensors, f32({{kReplica, partial()}, {kFold, partial()}}), f32({{kFold, flat()}})),
      "reduce_scatter over fold, 512 bytes\n"
      "all_reduce over replica, 128 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}), f32({{kTensor, shard(0)}})),
            "slice, 180 bytes\n"
            "all_reduce over fold, 180 bytes");
  EXPECT_EQ(steps_of(kMatrix, f32({{kFold, partial()}, {kTensor, shard(0)}}),
                     f32({{kFold, flat()}, {kTensor, shard(0)}})),
            "reduce_scatter over fold, 512 bytes");
}

TEST(Steps, ValuesAreGatheredInTheNarrowerDtype) {
  EXPECT_EQ(steps_of(kTensors, b16({{kFold, flat()}}), b16({})), "all_gather over fold, 256 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, flat()}}), b16({})),
            "cast, 64 bytes\n"
            "all_gather over fold, 256 bytes");
  EXPECT_EQ(steps_of(kTensors, b16({{kFold, flat()}}), f32({})),
            "all_gather over fold, 256 bytes\n"
            "cast, 512 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kTensor, shard(0)}}), f32({})),
            "all_gather over tensor, 360 bytes\n"
            "unpack, 360 bytes");
  EXPECT_EQ(
      steps_of(kTensors, f32({{kTensor, shard(0)}, {kFold, flat()}}), b16({{kTensor, shard(0)}})),
      "cast, 64 bytes\n"
      "all_gather over fold, 256 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kTensor, shard(0)}, {kFold, flat()}}), f32({})),
            "all_gather over fold and tensor, 1024 bytes\n"
            "unpack, 360 bytes");
}

TEST(Steps, AxesThatKeepTheirCutAreLeftOut) {
  const Layout both = f32({{kFold, shard(0)}, {kTensor, shard(0)}});

  EXPECT_EQ(steps_of(kMatrix, both, f32({{kFold, shard(0)}})), "all_gather over tensor, 128 bytes");
  // The rows that tensor cuts are others without fold.
  EXPECT_EQ(steps_of(kMatrix, both, f32({{kTensor, shard(0)}})),
            "pack, 256 bytes\n"
            "exchange over fold and tensor, 384 bytes");
  EXPECT_EQ(
      steps_of(kMatrix, f32({{kFold, shard(0)}, {kTensor, shard(1)}}), f32({{kTensor, shard(1)}})),
      "all_gather over fold, 256 bytes");
}

TEST(Steps, MessagesCarryWhatARankLacks) {
  EXPECT_EQ(steps_of(kMatrix, f32({{kTensor, shard(0)}}), f32({{kTensor, shard(1)}})),
            "pack, 256 bytes\n"
            "all_to_all over tensor, 256 bytes");
  EXPECT_EQ(steps_of(kMatrix, f32({{kFold, flat()}}), f32({{kFold, owner()}})),
            "exchange over fold, 384 bytes");
  EXPECT_EQ(steps_of(kMatrix, f32({{kFold, flat()}}), b16({{kTensor, shard(1)}})),
            "cast, 64 bytes\n"
            "pack, 128 bytes\n"
            "exchange over fold, 192 bytes");
  EXPECT_EQ(steps_of(kMatrix, f32({{kFold, owner()}}), f32({{kFold, shard(0)}})),
            "exchange over fold, 384 bytes");
  EXPECT_EQ(steps_of(kTensors, b16({{kFold, owner()}}), f32({})),
            "copy, 180 bytes\n"
            "broadcast over fold, 180 bytes\n"
            "cast, 360 bytes");
}

TEST(Steps, WhatARankHasIsCutWithoutTheOthers) {
  EXPECT_EQ(steps_of(kTensors, f32({}), f32({})), "copy, 360 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({}), b16({{kFold, flat()}})),
            "slice, 128 bytes\n"
            "cast, 64 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({}), f32({{kFold, owner()}})), "slice, 360 bytes");
  EXPECT_EQ(steps_of(kTensors, make(DType::f32, {{kFold, flat()}}, Home::host), b16({})),
            "to_device, 128 bytes\n"
            "cast, 64 bytes\n"
            "all_gather over fold, 256 bytes");
  EXPECT_EQ(steps_of(kTensors, f32({{kFold, partial()}}),
                     make(DType::f32, {{kFold, flat()}}, Home::host)),
            "reduce_scatter over fold, 512 bytes\n"
            "to_host, 128 bytes");
}

TEST(Steps, WhatCannotBeMovedIsRefused) {
  const auto refused = [](const std::vector<Shape>& shapes, const Layout& from, const Layout& to) {
    return refusal(ExitCode::usage, [&] { (void)steps_of(shapes, from, to); });
  };

  EXPECT_EQ(
      refused(kTensors, f32({{kFold, flat()}}), b16({{kFold, partial()}})),
      "no movement from \"flat over fold, f32, device\" to \"partial over fold, bf16, device\": "
      "nothing says which terms of a sum the 4 ranks of fold would hold; only terms stay terms");
  EXPECT_EQ(
      refused(kTensors, f32({}), f32({{kFold, shard(0)}})),
      "no movement from \"replicate, f32, device\" to \"shard(0) over fold, f32, device\": "
      "tensor 1 (10): the 4 ranks of fold cannot cut the 10 elements of dimension 0 into equal "
      "parts; the nearest number of ranks that can is 5");
  EXPECT_EQ(
      refused(kTensors, make(DType::u8, {}), f32({})),
      "no movement from \"replicate, u8, device\" to \"replicate, f32, device\": u8 is not f64, "
      "f32, bf16 or f16");
}

TEST(Steps, GroupsThatTheMeshLacksAreNamed) {
  const Mesh mesh = Mesh::plan(kFirst, std::vector<AxisSet>{kFold, kTensor});
  const Layout from = f32({{kFold, flat()}, {kTensor, shard(0)}});

  expect_error(ExitCode::internal, {"no group over fold and tensor"},
               [&] { (void)Movement::plan(mesh, kTensors, from, f32({})); });
}

TEST(Steps, BuffersThatAreTooSmallAreRefused) {
  Context ctx(Device::meta);
  const Mesh mesh = Mesh::plan(kFirst, groups_of(kFirst));
  Movement movement =
      Movement::plan(mesh, kTensors, f32({{kFold, partial()}}), b16({{kFold, flat()}}));
  const auto view = [](DType dtype, Dim elements) {
    return View(nullptr, dtype, Device::meta, {elements});
  };

  expect_error(
      ExitCode::internal, {"from of a movement has 90 elements of f32", "128 of f32"}, [&] {
        movement.start(ctx, view(DType::f32, 90), view(DType::bf16, 32), view(DType::u8, 256));
      });
  expect_error(ExitCode::internal, {"to of a movement has 32 elements of f32", "32 of bf16"}, [&] {
    movement.start(ctx, view(DType::f32, 128), view(DType::f32, 32), view(DType::u8, 256));
  });
  expect_error(ExitCode::internal, {"scratch of a movement is smaller"}, [&] {
    movement.start(ctx, view(DType::f32, 128), view(DType::bf16, 32), view(DType::u8, 64));
  });
  movement.start(ctx, view(DType::f32, 128), view(DType::bf16, 32), view(DType::u8, 256));
  expect_error(ExitCode::internal, {"started twice"}, [&] {
    movement.start(ctx, view(DType::f32, 128), view(DType::bf16, 32), view(DType::u8, 256));
  });
}

}  // namespace
}  // namespace hyperslab::test
