// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarps = 8;
constexpr const char* kName = "merge_attention";

template <class T>
struct MergeCall {
  Dim rows;  ///< (sample, token, head)
  Dim tokens;
  Dim heads;
  Dim head_width;
  const T* a;
  const T* b;
  const float* sum_a;
  const float* sum_b;
  T* out;
  float* log_sum_exp;
};

/// A warp a row.
template <class T>
__global__ void __launch_bounds__(32 * kWarps) merge_attention_kernel(MergeCall<T> call) {
  const Dim row = static_cast<Dim>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= call.rows) return;
  const Dim token = row / call.heads;
  const Dim statistic =
      (token / call.tokens * call.heads + row % call.heads) * call.tokens + token % call.tokens;
  const float sum_a = call.sum_a[statistic];
  const float sum_b = call.sum_b[statistic];
  const float top = fmaxf(sum_a, sum_b);
  const bool seen = top > -INFINITY;
  const float weight_a = seen ? expf(sum_a - top) : 0.0F;
  const float weight_b = seen ? expf(sum_b - top) : 0.0F;
  const float total = seen ? weight_a + weight_b : 1.0F;
  const Dim at = row * call.head_width;
  for (Dim c = at + threadIdx.x; c < at + call.head_width; c += 32) {
    const float sum = weight_a * to_real(call.a[c]) + weight_b * to_real(call.b[c]);
    call.out[c] = from_real<T>(sum / total);
  }
  __syncwarp();  // log_sum_exp may be one of the parts'
  if (threadIdx.x == 0) call.log_sum_exp[statistic] = seen ? top + logf(total) : top;
}

}  // namespace

void merge_attention(Context& ctx, const AttentionPart& a, const AttentionPart& b, View out,
                     View log_sum_exp) {
  with_element(out.dtype(), kName, [&]<class T>(T) {
    const Dim H = log_sum_exp.shape()[1];
    const MergeCall<T> call = {out.shape()[0] * out.shape()[1] * H,
                               out.shape()[1],
                               H,
                               out.shape()[2] / H,
                               a.out.data<T>(),
                               b.out.data<T>(),
                               a.log_sum_exp.data<float>(),
                               b.log_sum_exp.data<float>(),
                               out.data<T>(),
                               log_sum_exp.data<float>()};
    if (call.rows == 0) return;
    merge_attention_kernel<<<static_cast<unsigned>(ceil_divide(call.rows, kWarps)),
                             dim3(32, kWarps), 0, ctx.stream().cuda()>>>(call);
    check_launch(kName);
  });
}

}  // namespace hyperslab::ops::cuda
