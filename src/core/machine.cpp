// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/machine.hpp"

#include <algorithm>

namespace hyperslab {
namespace {

/// TFLOP/s; 0: the GPU has no such products.
struct Peak {
  std::string_view gpu;  ///< as the driver prints it, without "NVIDIA "
  double half = 0;       ///< fp16
  bool has_bf16 = true;  ///< at the rate of fp16
  double tf32 = 0;
  double fp32 = 0;
};

constexpr std::array kPeaks = {
    Peak{"Tesla V100-SXM2-16GB", 125, false, 0, 15.7},
    Peak{"Tesla V100-SXM2-32GB", 125, false, 0, 15.7},
    Peak{"Tesla V100-PCIE-16GB", 112, false, 0, 14},
    Peak{"Tesla V100-PCIE-32GB", 112, false, 0, 14},
    Peak{"Tesla V100S-PCIE-32GB", 130, false, 0, 16.4},
    Peak{"Tesla T4", 65, false, 0, 8.1},
    Peak{"A100-SXM4-40GB", 312, true, 156, 19.5},
    Peak{"A100-SXM4-80GB", 312, true, 156, 19.5},
    Peak{"A100-PCIE-40GB", 312, true, 156, 19.5},
    Peak{"A100 80GB PCIe", 312, true, 156, 19.5},
    Peak{"A800-SXM4-80GB", 312, true, 156, 19.5},
    Peak{"A800 80GB PCIe", 312, true, 156, 19.5},
    Peak{"A40", 149.7, true, 74.8, 37.4},
    Peak{"A30", 165, true, 82, 10.3},
    Peak{"A10", 125, true, 62.5, 31.2},
    Peak{"L4", 121, true, 60, 30.3},
    Peak{"L40", 181.05, true, 90.5, 90.5},
    Peak{"L40S", 362.05, true, 183, 91.6},
    Peak{"GeForce RTX 3090", 71, true, 35.6, 35.6},
    Peak{"GeForce RTX 4090", 165.2, true, 82.6, 82.6},
    Peak{"GeForce RTX 5090", 209.5, true, 104.8, 104.8},
    Peak{"RTX A6000", 154.8, true, 77.4, 38.7},
    Peak{"RTX 6000 Ada Generation", 364.2, true, 182.1, 91.1},
    Peak{"H100 PCIe", 756, true, 378, 51},
    Peak{"H100 NVL", 835.5, true, 417.5, 60},
    Peak{"H100 80GB HBM3", 989, true, 494, 67},
    Peak{"H800", 989, true, 494, 67},
    Peak{"H800 PCIe", 756, true, 378, 51},
    Peak{"H20", 148, true, 74, 44},
    Peak{"H200", 989, true, 494, 67},
    Peak{"H200 NVL", 835.5, true, 417.5, 60},
    Peak{"GH200 120GB", 989, true, 494, 67},
    Peak{"GH200 480GB", 989, true, 494, 67},
    Peak{"GH200 144G HBM3e", 989, true, 494, 67},
    Peak{"B100", 1750, true, 900, 60},
    Peak{"B200", 2250, true, 1100, 75},
    Peak{"GB200", 2500, true, 1250, 80},
};

}  // namespace

Machine machine_of(std::string_view gpu) {
  constexpr std::string_view kMaker = "NVIDIA ";
  constexpr double kTera = 1e12;
  if (gpu.starts_with(kMaker)) gpu.remove_prefix(kMaker.size());
  Machine machine;
  const auto row = std::ranges::find(kPeaks, gpu, &Peak::gpu);
  if (row == kPeaks.end()) return machine;
  const auto set = [&](Precision precision, double tera_flops) {
    machine.peak_flops[static_cast<std::size_t>(precision)] = kTera * tera_flops;
  };
  set(Precision::fp32, row->fp32);
  set(Precision::tf32, row->tf32);
  set(Precision::bf16, row->has_bf16 ? row->half : 0);
  set(Precision::fp16, row->half);
  return machine;
}

}  // namespace hyperslab
