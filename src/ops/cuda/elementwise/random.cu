// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction, for the bits of the CPU.
#include "cuda/tools/common.cuh"
#include "hyperslab/core/philox_normal.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// Thread (x, row of the grid) makes the normals of one Philox block and keeps its row's normals.
__global__ void __launch_bounds__(256)
    fill_normal_kernel(NormalSpec spec, std::uint64_t first, std::uint64_t pitch, Dim rows,
                       Dim columns, float* y) {
  const auto lane = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (Dim row = blockIdx.y; row < rows; row += gridDim.y) {
    const std::uint64_t begin = first + static_cast<std::uint64_t>(row) * pitch;
    const std::uint64_t end = begin + static_cast<std::uint64_t>(columns);
    const std::uint64_t block = begin / 4 + lane;
    if (block * 4 >= end) continue;
    float normals[4];
    philox_normals(block, spec.seed, spec.stream, normals);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t index = block * 4 + i;
      if (index < begin || index >= end) continue;
      y[row * columns + static_cast<Dim>(index - begin)] = spec.std_deviation * normals[i];
    }
  }
}

}  // namespace

void fill_normal(Context& ctx, const NormalSpec& spec, std::uint64_t first, std::uint64_t pitch,
                 View y) {
  constexpr Dim kMostRows = 65535;  // limit of a grid
  auto [rows, columns] = y.dims<2>("fill_normal y");
  if (pitch == static_cast<std::uint64_t>(columns)) {
    columns *= rows;
    rows = 1;
  }
  if (rows * columns == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_divide(columns / 4 + 2, 256)),
                    static_cast<unsigned>(std::min(rows, kMostRows)));
  fill_normal_kernel<<<blocks, 256, 0, ctx.stream().cuda()>>>(spec, first, pitch, rows, columns,
                                                              y.data<float>());
  check_launch("fill_normal");
}

}  // namespace hyperslab::ops::cuda
