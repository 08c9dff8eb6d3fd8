// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

/// Four elements per thread.
struct AverageUpdate {
  static constexpr int kWidth = 4;
  AverageConstants constants;
  const StepState* state;
  const float* master;
  float* average;

  template <int N>
  __device__ void at(Dim i) const {
    if (state->skip != 0) return;
    const bool begins = state->adam_step <= constants.start_step + 1;
    float x[N];
    float mean[N];
    load<N>(master + i, x);
    load<N>(average + i, mean);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      mean[k] = begins ? x[k] : mean[k] + constants.weight * (x[k] - mean[k]);
    }
    store<N>(average + i, mean);
  }
};

struct Exchange {
  static constexpr int kWidth = 4;
  float* a;
  float* b;

  template <int N>
  __device__ void at(Dim i) const {
    float x[N];
    float y[N];
    load<N>(a + i, x);
    load<N>(b + i, y);
    store<N>(a + i, y);
    store<N>(b + i, x);
  }
};

}  // namespace

void average_weights(Context& ctx, const AverageConstants& constants, const StepState* state,
                     CView master, View average) {
  const AverageUpdate op = {constants, state, master.data<float>(), average.data<float>()};
  for_each(ctx, "average_weights", master, aligned(op.master, op.average), op);
}

void exchange(Context& ctx, View a, View b) {
  const Exchange op = {a.data<float>(), b.data<float>()};
  for_each(ctx, "exchange", a, aligned(op.a, op.b), op);
}

}  // namespace hyperslab::ops::cuda
