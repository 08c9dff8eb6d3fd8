// SPDX-License-Identifier: Apache-2.0
// A machine with round numbers.
#pragma once

#include <cmath>

#include "hyperslab/plan/machine_file.hpp"

namespace hyperslab::test {

inline constexpr double kLinkBytesPerSecond = 100e9;

inline Operation gemm(double rows, double columns, double inner) {
  return {.name = "linear_forward",
          .phase = Phase::forward,
          .size = {.flops = 2 * rows * columns * inner,
                   .bytes = 2 * (rows * inner + inner * columns + rows * columns),
                   .dtype = DType::bf16,
                   .operands = {{rows, inner}, {columns, inner}, {}, {rows, columns}}}};
}

/// GEMMs of 1024 and 4096 at 400 and 600 TFLOP/s, an op at 2 TB/s, links of 100 GB/s.
inline plan::MachineFile made_up_machine() {
  plan::MachineFile machine;
  machine.name = "made up";
  machine.memory_bytes = 80e9;
  machine.launch_seconds = 1e-6;
  machine.network_latency_seconds = 1e-5;
  machine.network_bytes_per_second = 10e9;
  machine.storage_bytes_per_second = 1e9;
  machine.peak_flops["bf16"] = 1000e12;
  const OpSize small = gemm(1024, 1024, 1024).size;
  const OpSize large = gemm(4096, 4096, 4096).size;
  machine.ops["bf16"] = {
      {"linear_forward", small, small.flops / 400e12, 1},
      {"linear_forward", large, large.flops / 600e12, 1},
      {"add",
       {.flops = 1e6, .bytes = 6e6, .dtype = DType::bf16, .operands = {{1, 1e6}}},
       6e6 / 2e12,
       2}};
  for (const char* group : {"data", "tensor"}) {
    for (const char* call : {"all_reduce", "reduce_scatter", "all_gather"}) {
      for (const double bytes : {1e4, 1e6, 1e8}) {
        const double share = std::string(call) == "all_reduce" ? 1.0 : 0.5;
        machine.collectives.push_back({group, call, 2, bytes, share * bytes / kLinkBytesPerSecond});
      }
    }
  }
  for (const double bytes : {1e4, 1e8}) {
    machine.collectives.push_back({"pipeline", "send", 2, bytes, bytes / kLinkBytesPerSecond});
  }
  return machine;
}

}  // namespace hyperslab::test
