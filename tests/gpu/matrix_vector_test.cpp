// SPDX-License-Identifier: Apache-2.0
// Products of few rows, as in generation: what kernels of our own compute instead of cuBLASLt.
#include <cuda_runtime_api.h>

#include <cmath>

#include "gpu_test.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuMatrixVector : public GpuTest {};

struct Size {
  Dim M, K;
};
/// One tile and less, tails of tiles and of steps, several steps of every warp.
const std::vector<Size> kSizes = {{1, 8},      {16, 32},    {17, 40},    {3, 1000},
                                  {129, 4096}, {40, 14336}, {1003, 2056}};

Problem few_rows(DType dtype, const Size& size, Dim rows, bool bias) {
  Problem problem(dtype);
  problem.input(random_tensor(dtype, {rows, size.K}, 1, 1 / std::sqrt(double(size.K))))
      .input(random_tensor(dtype, {size.M, size.K}, 2));
  if (bias) {
    problem.input(random_tensor(dtype, {size.M}, 3));
  } else {
    problem.absent();
  }
  problem.output(dtype, {rows, size.M});
  return problem;
}

TEST_F(GpuMatrixVector, MatchesTheOracleForAllFewRows) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Size& size : kSizes) {
      for (Dim rows = 1; rows <= 9; ++rows) {
        for (const bool bias : {false, true}) {
          few_rows(dtype, size, rows, bias)
              .expect_match(
                  [](Context& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], v[2], v[3]); },
                  "linear_forward of " + std::to_string(rows) + " rows, " +
                      Shape{size.M, size.K}.str());
        }
      }
    }
  }
}

TEST_F(GpuMatrixVector, ARowHasTheBitsThatItHasAlone) {
  const Dim K = 2048;
  const Dim M = 200;
  const auto product = [&](Dim rows) {
    Problem problem(DType::bf16);
    problem.input(random_tensor(DType::bf16, {rows, K}, 1))
        .input(random_tensor(DType::bf16, {M, K}, 2))
        .output(DType::bf16, {rows, M});
    auto operands = problem.on_gpu(
        [](Context& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], {}, v[2]); });
    return std::move(operands[2]);
  };
  const Tensor all = product(8);
  for (Dim rows = 1; rows < 8; ++rows) {
    EXPECT_TRUE(same_bits(product(rows).view(), all.view().slice(0, rows))) << rows;
  }
}

/// Seconds of one call, of many in a row.
template <class Call>
double seconds_of(Context& ctx, const Call& call) {
  constexpr int kCalls = 50;
  for (int i = 0; i < 5; ++i) call();
  synchronize(ctx);
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&stop), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(start, ctx.stream().cuda()), cudaSuccess);
  for (int i = 0; i < kCalls; ++i) call();
  EXPECT_EQ(cudaEventRecord(stop, ctx.stream().cuda()), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(stop), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(stop), cudaSuccess);
  return milliseconds * 1e-3 / kCalls;
}

/// Against a copy of as many bytes, which reads and writes, in the same run; the matrices take
/// turns, so that no weight is found in the cache.
TEST_F(GpuMatrixVector, IsBoundByMemory) {
  constexpr Dim kBytes = Dim{256} << 20;
  Context ctx(Device::cuda);
  Tensor from(Device::cuda, DType::u8, {kBytes});
  Tensor to(Device::cuda, DType::u8, {kBytes});
  const double bandwidth =
      2.0 * double(kBytes) / seconds_of(ctx, [&] { copy(ctx, from.view(), to.view()); });
  RecordProperty("copy_gb_per_second", int(bandwidth / 1e9));
  for (const auto& [M, K] : std::vector<Size>{
           {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}) {
    const Dim matrices = std::max<Dim>(1, kBytes / (2 * M * K));
    Tensor weights(Device::cuda, DType::bf16, {matrices, M, K});
    for (const Dim rows : {1, 8}) {
      Tensor x(Device::cuda, DType::bf16, {rows, K});
      Tensor y(Device::cuda, DType::bf16, {rows, M});
      Dim turn = 0;
      const double seconds = seconds_of(ctx, [&] {
        const View weight = weights.view().slice(turn++ % matrices, 1).reshaped({M, K});
        linear_forward(ctx, x.view(), weight, {}, y.view());
      });
      const double share = 2.0 * double(M * K) / seconds / bandwidth;
      std::printf("linear_forward of %d rows, (%d, %d) in bf16: %.1f us, %.0f %% of a copy\n",
                  int(rows), int(M), int(K), seconds * 1e6, 100 * share);
      EXPECT_GT(share, 0.5) << rows << " rows, " << Shape{M, K}.str();
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
