// SPDX-License-Identifier: Apache-2.0
// The rate of matrix products against which utilization is stated.
#pragma once

#include <string>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/precision.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::plan {

/// A matrix product of n x n x n, for the best rate that cores or a GPU can reach.
class MatmulProbe {
 public:
  /// Multiplies once: touches the memory, starts threads, chooses an algorithm.
  MatmulProbe(Context& ctx, Dim n, DType dtype = DType::f32);
  /// Seconds of so many products one after another.
  double run(int products = 1);
  /// FLOPs of one product.
  [[nodiscard]] double flops() const;

 private:
  Context& ctx_;
  Dim n_;
  Tensor a_;
  Tensor b_;
  Tensor c_;
};

struct MachineRate {
  double flops = 0;         ///< FLOP/s of all ranks together; not a number if it is not known
  bool is_measured = true;  ///< otherwise NVIDIA's statement or the user's
  std::string name;         ///< "the measured matrix rate" | "the stated matrix rate" | "the peak"
  std::string source;       ///< "fp32, 2048 x 2048 x 2048, all ranks at once"

  /// "the measured matrix rate, 123.4 GFLOP/s of 4 ranks (...)"
  [[nodiscard]] std::string describe(int ranks) const;
};

/// Measures the rate that all ranks reach together, in about a second: they multiply at once with
/// their threads, in the run's precision, again and again; of every round the slowest rank counts,
/// of the rounds the best. Products are as large as fast cores need (4096), slow ones have time for
/// (`smallest`) and memory is left for. Collective over the world. `run`: of this rank; only its
/// device and TF32 are looked at. Not a number if a rank has no memory left even for the smallest.
[[nodiscard]] MachineRate measured_rate(comm::World& world, const Context& run, Precision precision,
                                        Dim smallest = 1024);

/// The rate that utilization is stated against: on a GPU of the table its peak, on a CPU the rate
/// that HYPERSLAB_MATRIX_GFLOPS gives every rank, otherwise the measured one. Collective over the
/// world.
[[nodiscard]] MachineRate machine_rate(comm::World& world, const Context& ctx, Precision precision);

}  // namespace hyperslab::plan
