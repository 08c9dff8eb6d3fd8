// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "cuda/tools/library_workspace.hpp"
#include "sinks.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;

template <class T>
struct SinkCall {
  Dim rows;  ///< (sample, token, head)
  Dim tokens;
  Dim heads;
  Dim head_width;
  const T* logits;
  T* out;
  float* log_sum_exp;
  float* weights;  ///< null: not wanted

  /// The offset of a row's statistics in (B, H, T).
  [[nodiscard]] __device__ Dim statistic_at(Dim row) const {
    const Dim token = row / heads;
    return (token / tokens * heads + row % heads) * tokens + token % tokens;
  }
};

/// A warp a row.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) attend_sinks_kernel(SinkCall<T> call) {
  const Dim row = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= call.rows) return;
  const Dim at = call.statistic_at(row);
  const float scores = call.log_sum_exp[at];
  const float sink = to_real(call.logits[row % call.heads]);
  const float top = fmaxf(scores, sink);
  const float total = top + logf(expf(scores - top) + expf(sink - top));
  const float left = expf(scores - total);
  T* out = call.out + row * call.head_width;
  for (Dim c = threadIdx.x; c < call.head_width; c += 32) {
    out[c] = from_real<T>(left * to_real(out[c]));
  }
  __syncwarp();
  if (threadIdx.x != 0) return;
  call.log_sum_exp[at] = total;
  if (call.weights != nullptr) call.weights[at] = expf(sink - total);
}

template <class T>
struct SinkGradientCall {
  Dim rows;  ///< (sample, token)
  Dim tokens;
  Dim heads;
  Dim head_width;
  const T* dout;
  const T* out;
  const float* weights;
  float* partial;  ///< (H, kSinkSplits)
};

/// Block (split of the rows, head): its part of the sum, in a fixed order.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    attend_sinks_gradient_kernel(SinkGradientCall<T> call) {
  __shared__ float scratch[32];
  const Dim head = blockIdx.y;
  const Dim share = (call.rows + gridDim.x - 1) / gridDim.x;
  const Dim begin = static_cast<Dim>(blockIdx.x) * share;
  const Dim end = min(call.rows, begin + share);
  float sum = 0;  // sum of this lane
  for (Dim row = begin + threadIdx.y; row < end; row += kWarps) {
    const Dim sample = row / call.tokens;
    const Dim at = (row * call.heads + head) * call.head_width;
    float dot = 0;
    for (Dim c = threadIdx.x; c < call.head_width; c += 32) {
      dot += to_real(call.out[at + c]) * to_real(call.dout[at + c]);
    }
    sum += call.weights[(sample * call.heads + head) * call.tokens + row % call.tokens] * dot;
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) scratch[threadIdx.y] = sum;
  __syncthreads();
  if (threadIdx.x != 0 || threadIdx.y != 0) return;
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += scratch[warp];
  call.partial[head * gridDim.x + blockIdx.x] = total;
}

/// A thread a head.
__global__ void attend_sinks_sum_kernel(const float* partial, Dim heads, bool accumulates,
                                        ParamGradient dlogits) {
  const Dim head = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (head >= heads) return;
  double sum = 0;
  for (int i = 0; i < kSinkSplits; ++i) {
    sum += static_cast<double>(partial[head * kSinkSplits + i]);
  }
  float total[1] = {-static_cast<float>(sum)};
  dlogits.put<1>(head, accumulates, total);
}

}  // namespace

void add_sinks(Context& ctx, const HeadLayout& layout, const AttentionSinks& sinks, View out,
               View log_sum_exp) {
  constexpr const char* kName = "attention_forward sinks";
  with_element(out.dtype(), kName, [&]<class T>(T) {
    const SinkCall<T> call = {out.shape()[0] * out.shape()[1] * layout.heads,
                              out.shape()[1],
                              layout.heads,
                              layout.head_width,
                              sinks.logits.data<T>(),
                              out.data<T>(),
                              log_sum_exp.data<float>(),
                              sinks.weights ? sinks.weights.data<float>() : nullptr};
    if (call.rows == 0) return;
    attend_sinks_kernel<<<static_cast<unsigned>(ceil_divide(call.rows, kWarps)), dim3(32, kWarps),
                          0, ctx.stream().cuda()>>>(call);
    check_launch(kName);
  });
}

void attention_sinks_backward(Context& ctx, const HeadLayout& layout, CView dout, CView out,
                              CView weights, Accumulate accumulate, View dlogits) {
  constexpr const char* kName = "attention_sinks_backward";
  auto* partial = static_cast<float*>(ctx.workspace(kName, attention_sinks_workspace(layout)));
  with_element(out.dtype(), kName, [&]<class T>(T) {
    const SinkGradientCall<T> call = {out.shape()[0] * out.shape()[1],
                                      out.shape()[1],
                                      layout.heads,
                                      layout.head_width,
                                      dout.data<T>(),
                                      out.data<T>(),
                                      weights.data<float>(),
                                      partial};
    attend_sinks_gradient_kernel<<<dim3(kSinkSplits, static_cast<unsigned>(layout.heads)),
                                   dim3(32, kWarps), 0, ctx.stream().cuda()>>>(call);
    check_launch(kName);
  });
  constexpr unsigned kThreads = 128;
  attend_sinks_sum_kernel<<<static_cast<unsigned>(ceil_divide(layout.heads, Dim{kThreads})),
                            kThreads, 0, ctx.stream().cuda()>>>(
      partial, layout.heads, accumulate == Accumulate::yes, dlogits);
  check_launch(kName);
}

}  // namespace hyperslab::ops::cuda
