// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_rate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

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
using plan::peak_flops;

struct Row {
  const char* gpu;
  double half;
  double tf32;
  double fp32;
};

TEST(PeakFlops, OfProductNames) {
  for (const auto& [gpu, half, tf32, fp32] :
       {Row{"NVIDIA H100 80GB HBM3", 989e12, 494e12, 67e12},
        Row{"NVIDIA H100 PCIe", 756e12, 378e12, 51e12},
        Row{"NVIDIA H100 NVL", 835.5e12, 417.5e12, 60e12},
        Row{"NVIDIA H200", 989e12, 494e12, 67e12},
        Row{"NVIDIA A100-SXM4-80GB", 312e12, 156e12, 19.5e12},
        Row{"A100-SXM4-40GB", 312e12, 156e12, 19.5e12},  // older drivers leave the maker out
        Row{"NVIDIA L40S", 362.05e12, 183e12, 91.6e12}, Row{"NVIDIA L4", 121e12, 60e12, 30.3e12},
        Row{"NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12, 82.6e12},
        Row{"NVIDIA B200", 2250e12, 1100e12, 75e12},
        Row{"NVIDIA GB200", 2500e12, 1250e12, 80e12}}) {
    EXPECT_DOUBLE_EQ(peak_flops(gpu, "bf16").value_or(0), half) << gpu;
    EXPECT_DOUBLE_EQ(peak_flops(gpu, "fp16").value_or(0), half) << gpu;
    EXPECT_DOUBLE_EQ(peak_flops(gpu, "tf32").value_or(0), tf32) << gpu;
    EXPECT_DOUBLE_EQ(peak_flops(gpu, "fp32").value_or(0), fp32) << gpu;
  }
}

TEST(PeakFlops, OfPrecisionsThatAGpuLacks) {
  EXPECT_DOUBLE_EQ(peak_flops("Tesla V100-SXM2-32GB", "fp16").value_or(0), 125e12);
  EXPECT_DOUBLE_EQ(peak_flops("Tesla V100-PCIE-16GB", "fp16").value_or(0), 112e12);
  EXPECT_DOUBLE_EQ(peak_flops("Tesla V100-SXM2-32GB", "fp32").value_or(0), 15.7e12);
  for (const char* precision : {"bf16", "tf32"}) {
    EXPECT_FALSE(peak_flops("Tesla V100-SXM2-32GB", precision).has_value());
    EXPECT_FALSE(peak_flops("Tesla T4", precision).has_value());
  }
}

TEST(PeakFlops, OfNoOtherGpu) {
  for (const char* gpu : {"", "cpu", "NVIDIA", "NVIDIA H100", "NVIDIA H300", "NVIDIA A100-SXM-64GB",
                          "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40 S",
                          "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3060"}) {
    EXPECT_FALSE(peak_flops(gpu, "bf16").has_value()) << gpu;
  }
}

TEST(MatmulProbe, CountsItsProducts) {
  Context ctx(Device::cpu);
  MatmulProbe probe(ctx, 64);

  EXPECT_EQ(probe.flops(), 2.0 * 64 * 64 * 64);
  EXPECT_GT(probe.run(), 0);
  EXPECT_GT(probe.run(2000), probe.run(10));
}

TEST(MachineRate, IsMeasuredByAllRanksTogether) {
  const Context ctx(Device::cpu);
  const double start = now_seconds();

  const MachineRate rate = plan::machine_rate(world(), ctx, "fp32");

  EXPECT_TRUE(rate.is_measured);
  EXPECT_TRUE(std::isfinite(rate.flops));
  EXPECT_GT(rate.flops, 1e8);
  EXPECT_EQ(world().sum(rate.flops), world().size() * rate.flops) << "ranks disagree";
  EXPECT_LT(now_seconds() - start, 20);  // 0.6 s on an idle machine
  const std::string ranks = world().size() == 1 ? " of 1 rank (" : " of 2 ranks (";
  EXPECT_NE(rate.describe(world().size()).find("the measured matrix rate, "), std::string::npos);
  EXPECT_NE(rate.describe(world().size()).find(ranks), std::string::npos);
}

TEST(MachineRate, IsOfTheLargestProductThatFits) {
  const Context ctx(Device::cpu);
  most_bytes = std::size_t{128} * 128 * sizeof(float);
  const MachineRate rate = plan::measured_rate(world(), ctx, "fp32", 64);
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
