// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/arena.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "hyperslab/core/context.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab {
namespace {

void take_three(Arena& arena) {
  arena.take(DType::f32, {3, 5}, "first");
  arena.take(DType::u8, {1}, "second");
  arena.take(DType::f64, {7}, "third");
}

TEST(Arena, RealArenaHandsOutWhatWasMeasured) {
  Arena measuring("activations");
  take_three(measuring);

  Arena real("activations", Device::cpu, measuring.used_bytes());
  take_three(real);

  EXPECT_EQ(measuring.used_bytes(), 2 * Arena::kAlignment + 56);
  ASSERT_EQ(real.allocations().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(real.allocations()[i].offset_bytes, measuring.allocations()[i].offset_bytes);
    EXPECT_EQ(real.allocations()[i].label, measuring.allocations()[i].label);
  }
}

TEST(Arena, RefusesMoreThanThePlan) {
  Arena arena("scratch", Device::cpu, 64);
  arena.take(DType::f32, {8}, "fits");

  try {
    arena.take(DType::f32, {8}, "does not fit");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "arena scratch: does not fit needs 288 bytes, planned were 64");
  }
}

TEST(Arena, RefusesWhatCannotBeCounted) {
  Arena arena("parameters");
  (void)arena.take(DType::f32, {Dim{1} << 30, Dim{1} << 29}, "half");
  try {
    (void)arena.take(DType::f32, {Dim{1} << 31, Dim{1} << 29}, "rest");
    FAIL() << "4 EiB and more were taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find("beyond 4 EiB"), std::string::npos);
  }
}

TEST(Arena, AddressesAreAligned) {
  Arena arena("a", Device::cpu, 1024);
  arena.take(DType::u8, {3}, "odd");

  const View view = arena.take(DType::f32, {4}, "aligned");

  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.raw()) % Arena::kAlignment, 0U);
}

TEST(Arena, CanaryFindsTheHighestByteWritten) {
  Arena arena("a", Device::cpu, 1000, true);
  const View view = arena.take(DType::u8, {1000}, "bytes");
  EXPECT_EQ(arena.highest_touched(), 0U);

  view.data<std::uint8_t>()[122] = 1;
  EXPECT_EQ(arena.highest_touched(), 123U);

  view.data<std::uint8_t>()[1000] = 1;  // into the guard
  EXPECT_EQ(arena.highest_touched(), 1001U);
}

TEST(Tensor, CloneIsACopy) {
  Tensor a(Device::cpu, DType::i32, {2});
  a.view().data<std::int32_t>()[0] = 7;
  a.view().data<std::int32_t>()[1] = 8;

  Tensor b = a.clone();
  a.view().data<std::int32_t>()[0] = 9;

  EXPECT_EQ(b.view().data<std::int32_t>()[0], 7);
  EXPECT_EQ(b.view().data<std::int32_t>()[1], 8);
}

TEST(Context, WorkspaceIsPlannedOnMetaAndEnforced) {
  Context meta(Device::meta);
  meta.workspace("softmax", 100);
  meta.workspace("attention", 300);
  EXPECT_EQ(meta.workspace_high_water(), 300U);

  Context cpu(Device::cpu, meta.workspace_high_water());
  EXPECT_NE(cpu.workspace("attention", 300), nullptr);
  EXPECT_THROW(cpu.workspace("attention", 301), Error);
}

TEST(Context, PartialsLieBesideTheWorkspaceUntilTheyAreFreed) {
  const auto ask = [](Context& ctx) {
    const auto* first = static_cast<std::byte*>(ctx.partials("a", 100));
    const auto* second = static_cast<std::byte*>(ctx.partials("b", 300));
    const auto* scratch = static_cast<std::byte*>(ctx.workspace("c", 1000));
    return std::array{scratch, second, first};
  };
  Context meta(Device::meta);
  ask(meta);
  Context cpu(Device::cpu, meta.workspace_high_water());

  const auto [scratch, second, first] = ask(cpu);

  EXPECT_GE(second, scratch + 1000);
  EXPECT_GE(first, second + 300);
  EXPECT_LE(first + 100, scratch + meta.workspace_high_water());
  EXPECT_THROW(cpu.workspace("c", 1100), Error);
  cpu.free_partials();
  EXPECT_EQ(cpu.workspace("c", 1100), scratch);
}

TEST(Context, LedgerKeepsWorkByComponent) {
  Context meta(Device::meta);
  {
    const Scope scope(meta.recorder(), Component{3, "ffn"});
    meta.add_work("matmul", 10, 20);
    meta.add_work("matmul", 1, 2, "fused");
  }
  meta.add_work("fill", 0, 5);

  EXPECT_EQ(meta.ledger().component("ffn").flops, 11);
  EXPECT_EQ(meta.ledger().component("ffn").calls, 2);
  EXPECT_EQ(meta.ledger().total().bytes, 27);
  ASSERT_NE(meta.ledger().find("ffn", "matmul"), nullptr);
  EXPECT_EQ(meta.ledger().find("ffn", "matmul")->paths.count("fused"), 1U);
  EXPECT_TRUE(meta.ledger().find("other", "fill")->paths.empty());
  EXPECT_EQ(meta.ledger().find("ffn", "fill"), nullptr);
}

}  // namespace
}  // namespace hyperslab
