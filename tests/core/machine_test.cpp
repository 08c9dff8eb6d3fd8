// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/machine.hpp"

#include <gtest/gtest.h>

namespace hyperslab {
namespace {

struct Row {
  const char* gpu;
  double half;
  double tf32;
  double fp32;
};

TEST(MachinePeak, OfProductNames) {
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
    EXPECT_DOUBLE_EQ(machine_of(gpu).peak(Precision::bf16).value_or(0), half) << gpu;
    EXPECT_DOUBLE_EQ(machine_of(gpu).peak(Precision::fp16).value_or(0), half) << gpu;
    EXPECT_DOUBLE_EQ(machine_of(gpu).peak(Precision::tf32).value_or(0), tf32) << gpu;
    EXPECT_DOUBLE_EQ(machine_of(gpu).peak(Precision::fp32).value_or(0), fp32) << gpu;
  }
}

TEST(MachinePeak, OfPrecisionsThatAGpuLacks) {
  EXPECT_DOUBLE_EQ(machine_of("Tesla V100-SXM2-32GB").peak(Precision::fp16).value_or(0), 125e12);
  EXPECT_DOUBLE_EQ(machine_of("Tesla V100-PCIE-16GB").peak(Precision::fp16).value_or(0), 112e12);
  EXPECT_DOUBLE_EQ(machine_of("Tesla V100-SXM2-32GB").peak(Precision::fp32).value_or(0), 15.7e12);
  for (const Precision precision : {Precision::bf16, Precision::tf32}) {
    EXPECT_FALSE(machine_of("Tesla V100-SXM2-32GB").peak(precision).has_value());
    EXPECT_FALSE(machine_of("Tesla T4").peak(precision).has_value());
  }
}

TEST(MachinePeak, OfNoOtherGpu) {
  for (const char* gpu : {"", "cpu", "NVIDIA", "NVIDIA H100", "NVIDIA H300", "NVIDIA A100-SXM-64GB",
                          "NVIDIA A10G", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA L40 S",
                          "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3060"}) {
    EXPECT_FALSE(machine_of(gpu).peak(Precision::bf16).has_value()) << gpu;
  }
}

TEST(Machine, KeepsWhatWasMeasuredOnAnH200) {
  const Machine known = machine_of("NVIDIA H200");
  const Machine unknown = machine_of("");
  EXPECT_EQ(unknown, Machine());
  for (const Machine& machine : {known, unknown}) {
    EXPECT_EQ(2 * machine.gemm_flops / machine.link_bytes, 4800);
    EXPECT_EQ(machine.ctas, CtaBudgets());
  }
  EXPECT_LE(known.ctas.world + known.ctas.data + known.ctas.pipeline + known.ctas.tied,
            kReferenceMultiprocessors);
}

}  // namespace
}  // namespace hyperslab
