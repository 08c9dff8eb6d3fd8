// SPDX-License-Identifier: Apache-2.0
// Constants of machines: numbers that decide how work is cut, and peak rates.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "hyperslab/core/precision.hpp"

namespace hyperslab {

/// Launch shapes of kernels are cut for a GPU of this many multiprocessors (H100, H200) on every
/// GPU: they depend on sizes alone, so that a plan is exact and results have the same bits
/// everywhere.
inline constexpr int kReferenceMultiprocessors = 132;

/// Thread blocks that a collective may take from the arithmetic beside it. Collectives beside
/// arithmetic take few: on an H200, 8 blocks move 189 GB/s of 340 in an all-reduce over 4 GPUs,
/// and gradients get twice as many. The world only adds up scalars. All kinds together fit on a
/// GPU, so that no two of them can wait for each other's multiprocessors.
struct CtaBudgets {
  int world = 2;
  int data = 16;
  int pipeline = 8;
  int tied = 8;
  friend bool operator==(const CtaBudgets&, const CtaBudgets&) = default;
};

/// One GPU of a machine and its links. Rates that no one has measured there are an H200's.
struct Machine {
  /// FLOP/s that NVIDIA states for dense matrix products, by Precision; 0: not known, or the GPU
  /// has no such products.
  std::array<double, 4> peak_flops{};
  double gemm_flops = 600e12;  ///< FLOP/s that large GEMMs of 16-bit operands reach
  double link_bytes = 250e9;   ///< bytes/s of a rank's buffer in an all-reduce within the machine
  CtaBudgets ctas;

  [[nodiscard]] std::optional<double> peak(Precision precision) const {
    const double flops = peak_flops[static_cast<std::size_t>(precision)];
    return flops == 0 ? std::nullopt : std::optional(flops);
  }
  friend bool operator==(const Machine&, const Machine&) = default;
};

/// The machine of a GPU, by the whole product name as the driver prints it. Peaks come from a table
/// (fp32: CUDA cores; tf32, bf16, fp16: tensor cores that add in fp32, without sparsity);
/// parts of a GPU (MIG) and variants that NVIDIA does not document have none.
///
/// Sources: NVIDIA's data sheets of V100 (2020), T4 (2019), A10, A30, A40 (2021), A100 (2021),
/// L4, L40, L40S (2023), H100 (2023, 2024), H200 (2024), GH200 (2023), and of their variants for
/// China; Blackwell architecture brief and HGX B200, GB200 NVL72 data sheets (2024, 2025);
/// white papers of the GA102, Ada and RTX Blackwell architectures for RTX cards. Data sheets since
/// A100 state twice the dense rate "with sparsity"; this table does not.
[[nodiscard]] Machine machine_of(std::string_view gpu);

}  // namespace hyperslab
