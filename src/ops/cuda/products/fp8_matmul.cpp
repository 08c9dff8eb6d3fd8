// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"
#include "gemm.hpp"

namespace hyperslab::ops::cuda {

void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias, Fp8Sums sums,
                Accumulate accumulate, View c) {
  const auto [M, N] = c.dims<2>("fp8_matmul c");
  const Dim K = a.values.shape()[1];
  if (bias && c.dtype() != DType::bf16) {
    throw Error(ExitCode::device,
                "fp8_matmul: cuBLASLt adds a bias of 8-bit products in bf16 alone; set "
                "precision.compute: bf16");
  }
  Gemm p;
  p.op = "fp8_matmul";
  p.M = M;
  p.N = N;
  p.K = K;
  p.in = DType::u8;
  p.out = c.dtype();
  p.a = {a.values.raw(), K};
  p.b = {b.values.raw(), K, Trans::yes};
  p.c = c.raw();
  p.ldc = N;
  p.accumulate = accumulate == Accumulate::yes;
  if (bias) {
    p.epilogue = Epilogue::bias;
    p.bias = const_cast<void*>(bias.raw());
  }
  p.fp8 = {true,
           a.scaling,
           b.scaling,
           a.format,
           b.format,
           sums,
           a.scales.data<float>(),
           b.scales.data<float>()};
  if (multiply(ctx, p)) return;
  throw Error(ExitCode::device, "fp8_matmul: cuBLASLt has no such product of 8-bit floats here, " +
                                    std::to_string(M) + " x " + std::to_string(N) + " x " +
                                    std::to_string(K) +
                                    "; it needs a Hopper GPU; set precision.gemm: compute");
}

}  // namespace hyperslab::ops::cuda
