// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "devices/matmul_problem.hpp"
#include "gpu_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::ops::test;

using GpuMatmul = GpuTest;
using GpuLinear = GpuTest;

/// The error of a long f32 GEMM against the oracle.
double error_of_f32(bool tf32) {
  Problem problem(DType::f32);
  problem.input(operand(DType::f32, {64, 4096}, 1, 4096))
      .input(operand(DType::f32, {4096, 64}, 2))
      .output(DType::f32, {64, 64});
  const auto call = [&](Context& ctx, const Views& v) {
    ctx.set_tf32(tf32);
    matmul(ctx, v[0], Trans::no, v[1], Trans::no, Accumulate::no, v[2]);
  };
  return relative_difference(problem.on_gpu(call)[2].view(), problem.on_oracle(call)[2].view());
}

TEST_F(GpuMatmul, F32UsesTf32OnlyIfAsked) {
  EXPECT_LT(error_of_f32(false), 5e-6);
  EXPECT_GT(error_of_f32(true), 2e-5);
  EXPECT_LT(error_of_f32(true), 5e-3);
}

TEST_F(GpuMatmul, SecondCallCanBeCapturedAndReplayed) {
  Context ctx(Device::cuda, 0);
  const Tensor host_a = operand(DType::bf16, {64, 96}, 1, 96);
  const Tensor host_b = operand(DType::bf16, {96, 80}, 2);
  Tensor a(Device::cuda, DType::bf16, {64, 96});
  Tensor b(Device::cuda, DType::bf16, {96, 80});
  Tensor c(Device::cuda, DType::f32, {64, 80});
  copy(ctx, host_a.view(), a.view());
  copy(ctx, host_b.view(), b.view());
  const auto gemm = [&](Accumulate accumulate) {
    matmul(ctx, a.view(), Trans::no, b.view(), Trans::no, accumulate, c.view());
  };
  gemm(Accumulate::yes);
  gemm(Accumulate::no);
  synchronize(ctx);
  Tensor once(Device::cpu, DType::f32, {64, 80});
  copy(ctx, c.view(), once.view());
  synchronize(ctx);

  cudaStream_t stream = ctx.stream().cuda();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  gemm(Accumulate::yes);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  Tensor thrice(Device::cpu, DType::f32, {64, 80});
  copy(ctx, c.view(), thrice.view());
  synchronize(ctx);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);

  auto expected = to_doubles(once.view());
  for (double& value : expected) value *= 3;
  EXPECT_LE(relative_difference(thrice.view(), tensor_of(DType::f64, {64, 80}, expected).view()),
            2e-5);
}

/// Rows, columns of dy and of pre: tiles that are cut off below, on the right and in depth, an odd
/// number of them below one another, more of them than multiprocessors, and sums over more depth
/// than is in shared memory at once.
const std::vector<std::array<Dim, 3>> kTiledSizes = {
    {1000, 200, 1608}, {1100, 64, 1544}, {130, 72, 6152}, {2049, 136, 3072}, {1000, 1000, 1608}};

/// Hopper has kernels for many tiles of 16-bit elements.
TEST_F(GpuLinear, ActivationForwardInTiles) {
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const auto& [rows, K, M] : kTiledSizes) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, K}, 1, K))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {M}, 3));
      for (int i = 0; i < 4; ++i) problem.output(dtype, {rows, M});
      expect_both_modes(
          problem,
          [](Context& ctx, const Views& v) {
            linear_activation_forward(ctx, v[0], v[1], v[2], Activation::gelu_tanh, v[3], v[4]);
            linear_activation_forward(ctx, v[0], v[1], {}, Activation::gelu_tanh, v[5], v[6]);
          },
          "linear_activation_forward in tiles", {3, 4, 5, 6}, precision);
    }
  }
}

TEST_F(GpuLinear, ActivationForwardInTilesHasTheBitsOfActivationForward) {
  const auto& [rows, K, M] = kTiledSizes[0];
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Activation activation : {Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                        Activation::silu, Activation::relu_squared}) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, K}, 1, K))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {M}, 3));
      for (int i = 0; i < 3; ++i) problem.output(dtype, {rows, M});
      const auto found = problem.on_gpu([&](Context& ctx, const Views& v) {
        linear_activation_forward(ctx, v[0], v[1], v[2], activation, v[3], v[4]);
        activation_forward(ctx, activation, v[3], v[5]);
      });
      EXPECT_TRUE(same_bits(found[4].view(), found[5].view())) << name_of(dtype);
    }
  }
}

TEST_F(GpuLinear, ActivationBackwardInputInTilesWithItsBias) {
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const auto& [rows, M, K] : kTiledSizes) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, M}, 1, M))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {rows, K}, 3))
          .output(dtype, {rows, K})
          .in_out(operand(dtype, {rows, K}, 3))
          .output(DType::f32, {K})
          .in_out(operand(DType::f32, {K}, 4));
      expect_both_modes(
          problem,
          [](Context& ctx, const Views& v) {
            linear_activation_backward_input(ctx, v[0], v[1], v[2], Activation::gelu_tanh,
                                             {v[3], v[5]});
            linear_activation_backward_input(ctx, v[0], v[1], v[4], Activation::gelu_tanh,
                                             {v[4], v[6], Accumulate::yes});
          },
          "linear_activation_backward_input in tiles", {3, 4, 5, 6}, precision);
    }
  }
}

TEST_F(GpuLinear, ActivationBackwardInputInTilesTakesEveryActivation) {
  const auto& [rows, M, K] = kTiledSizes[0];
  for (const Precision& precision : {Precision{DType::bf16}, Precision{DType::f16}}) {
    const DType dtype = precision.dtype;
    for (const Activation activation :
         {Activation::gelu, Activation::relu, Activation::silu, Activation::relu_squared}) {
      Problem problem(dtype);
      problem.input(operand(dtype, {rows, M}, 1, M))
          .input(operand(dtype, {M, K}, 2))
          .input(operand(dtype, {rows, K}, 3))
          .output(dtype, {rows, K})
          .in_out(operand(dtype, {rows, K}, 3));
      expect_both_modes(
          problem,
          [&](Context& ctx, const Views& v) {
            linear_activation_backward_input(ctx, v[0], v[1], v[2], activation, {v[3]});
            linear_activation_backward_input(ctx, v[0], v[1], v[4], activation, {v[4]});
          },
          "linear_activation_backward_input in tiles", {3, 4}, precision);
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
