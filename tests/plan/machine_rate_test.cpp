// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_rate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"

namespace {

std::size_t most_bytes = std::numeric_limits<std::size_t>::max();  // of one allocation
int refused = 0;

}  // namespace

/// The allocator of tensors on the CPU, which can be made to run out of memory.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  if (bytes > most_bytes) {
    ++refused;
    return nullptr;
  }
  void* memory = nullptr;
  return posix_memalign(&memory, alignment, bytes) == 0 ? memory : nullptr;
}

namespace hyperslab::test {
namespace {

using plan::MachineRate;
using plan::MatmulProbe;

TEST(MatmulProbe, CountsItsProducts) {
  Context ctx(Device::cpu);
  MatmulProbe probe(ctx, 64);

  EXPECT_EQ(probe.flops(), 2.0 * 64 * 64 * 64);
  EXPECT_GT(probe.run(), 0);
  EXPECT_GT(probe.run(2000), probe.run(10));
}

constexpr const char* kVariable = "HYPERSLAB_MATRIX_GFLOPS";

TEST(MachineRate, IsMeasuredByAllRanksTogether) {
  ::unsetenv(kVariable);
  const Context ctx(Device::cpu);
  const double start = now_seconds();

  const MachineRate rate = plan::machine_rate(world(), ctx, Precision::fp32);

  EXPECT_TRUE(rate.is_measured);
  EXPECT_TRUE(std::isfinite(rate.flops));
  EXPECT_GT(rate.flops, 1e8);
  EXPECT_EQ(world().sum(rate.flops), world().size() * rate.flops) << "ranks disagree";
  EXPECT_LT(now_seconds() - start, 20);  // 0.6 s on an idle machine
  const std::string ranks = world().size() == 1 ? " of 1 rank (" : " of 2 ranks (";
  EXPECT_NE(rate.describe(world().size()).find("the measured matrix rate, "), std::string::npos);
  EXPECT_NE(rate.describe(world().size()).find(ranks), std::string::npos);
}

TEST(MachineRate, MayBeStatedOnTheFirstRank) {
  const Context ctx(Device::cpu);
  ::unsetenv(kVariable);
  if (world().rank() == 0) ::setenv(kVariable, "12.5", 1);

  const MachineRate rate = plan::machine_rate(world(), ctx, Precision::fp32);
  ::unsetenv(kVariable);

  EXPECT_FALSE(rate.is_measured);
  EXPECT_EQ(rate.flops, world().size() * 12.5e9);
  EXPECT_EQ(rate.name, "the stated matrix rate");
  EXPECT_EQ(rate.source, kVariable);
}

TEST(MachineRate, StatedAsNoRateIsRefused) {
  const Context ctx(Device::cpu);
  for (const char* text : {"fast", "0", "-3", "inf", "nan", "5 GFLOP/s", "1e299", "5 ", " 5"}) {
    ::setenv(kVariable, text, 1);
    try {
      (void)plan::machine_rate(world(), ctx, Precision::fp32);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("HYPERSLAB_MATRIX_GFLOPS is '"), std::string::npos);
    }
  }
  ::unsetenv(kVariable);
}

TEST(MachineRate, IsOfTheLargestProductThatFits) {
  const Context ctx(Device::cpu);
  most_bytes = std::size_t{128} * 128 * sizeof(float);
  const MachineRate rate = plan::measured_rate(world(), ctx, Precision::fp32, 64);
  most_bytes = std::numeric_limits<std::size_t>::max();

  EXPECT_TRUE(std::isfinite(rate.flops));
  EXPECT_EQ(rate.source, "fp32, 128 x 128 x 128, all ranks at once");
  EXPECT_EQ(refused, 1);
}

TEST(MachineRate, ReadsWell) {
  MachineRate rate;
  rate.name = "the peak";
  rate.source = "NVIDIA H200 in bf16";
  rate.flops = 1978e12;
  EXPECT_EQ(rate.describe(2), "the peak, 1978.0 TFLOP/s of 2 ranks (NVIDIA H200 in bf16)");
  rate.flops = 61.5e9;
  EXPECT_EQ(rate.describe(1), "the peak, 61.5 GFLOP/s of 1 rank (NVIDIA H200 in bf16)");
}

}  // namespace
}  // namespace hyperslab::test
