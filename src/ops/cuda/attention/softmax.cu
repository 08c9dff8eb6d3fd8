// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/dropout.cuh"
#include "cuda/tools/softmax.cuh"
#include "dropout_checks.hpp"
#include "softmax.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr Dim kWarpTokens = 1024;  // keys up to which a warp takes a row

template <class T>
struct SoftmaxCall {
  Dim rows = 0;
  Dim tokens = 0;
  Dim sample_rows = 0;  ///< rows of all heads of a sample
  Dim window = 0;
  const std::int32_t* first_keys = nullptr;
  float softcap = 0;
  Dim per_sample = 0;   ///< elements of H squares
  Dim mask_sample = 0;  ///< elements of a sample in the mask, which counts all heads
  Dim mask_first = 0;   ///< mask elements before the first head here
  bool causal = true;
  float scale = 1;
  DropoutMask mask;
  const T* probabilities = nullptr;  ///< backward only
  const T* scores = nullptr;         ///< backward of capped scores only
  const T* sinks = nullptr;          ///< (heads), or null: there are none
  float* sink_weights = nullptr;     ///< (rows), or null: not wanted
  T* x = nullptr;                    ///< scores, or gradients of probabilities
  T* dropped = nullptr;              ///< null if dropout is not active
};

/// One row of keys: which of them are seen, and the index of its first element in the dropout mask.
template <class T>
struct Keys {
  Dim offset;
  Dim begin = 0;
  Dim end;  ///< keys begin to end - 1 are seen
  std::uint64_t global = 0;
  __device__ Keys(const SoftmaxCall<T>& call, Dim row)
      : offset(row * call.tokens), end(call.causal ? row % call.tokens + 1 : call.tokens) {
    if (call.window > 0 && end > call.window) begin = end - call.window;
    if (call.first_keys != nullptr) {
      const Dim query = row / call.sample_rows * call.tokens + row % call.tokens;
      begin = max(begin, min(static_cast<Dim>(call.first_keys[query]), row % call.tokens));
    }
    if (call.dropped == nullptr) return;
    const Dim sample = offset / call.per_sample;
    global = static_cast<std::uint64_t>(call.mask.sample_position[sample] * call.mask_sample +
                                        call.mask_first + offset - sample * call.per_sample);
  }
  [[nodiscard]] __device__ bool see(Dim key) const { return key >= begin && key < end; }
  /// The key at which a thread that takes N keys of every `stride` begins; it sees none before.
  [[nodiscard]] __device__ Dim first_of(Dim first, Dim stride) const {
    return first + begin / stride * stride;
  }
};

__device__ inline float capped(float softcap, float score) {
  return softcap > 0 ? softcap * tanhf(score / softcap) : score;
}

/// dropped = probability * factor, for N keys from `first` on.
template <int N, class T>
__device__ void write_dropped(T* to, const float (&probability)[N], const float (&factor)[N]) {
  float value[N];
#pragma unroll
  for (int k = 0; k < N; ++k) value[k] = factor[k] == 0 ? 0.0F : probability[k] * factor[k];
  store<N>(to, value);
}

/// One row per block if kBlock, else per warp.
template <int N, bool kBlock, class T>
__global__ void __launch_bounds__(256) masked_softmax_kernel(SoftmaxCall<T> call) {
  __shared__ SoftmaxScratch scratch;
  constexpr bool kFast = sizeof(T) == 2;
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const Keys<T> keys(call, row);
  T* x = call.x + keys.offset;
  const Dim first = static_cast<Dim>(threadIdx.x) * N;
  const Dim stride = static_cast<Dim>(blockDim.x) * N;
  OnlineSum<kFast> mine;
  for (Dim j = keys.first_of(first, stride); j < keys.end; j += stride) {
    float score[N];
    load<N>(x + j, score);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      score[k] = keys.see(j + k) ? capped(call.softcap, score[k]) : -INFINITY;
    }
    mine.add(score);
  }
  auto total = row_total<kBlock>(mine, scratch);
  if (call.sinks != nullptr) {
    const float sink = to_real(call.sinks[row % call.sample_rows / call.tokens]);
    total.merge(sink, 1.0F);
    if (threadIdx.x == 0 && call.sink_weights != nullptr) {
      call.sink_weights[row] = expf(sink - total.top) / total.sum;
    }
  }
  const float inverse = 1.0F / total.sum;
  for (Dim j = first; j < call.tokens; j += stride) {
    float value[N] = {};
    if (j < keys.end && j + N > keys.begin) {
      load<N>(x + j, value);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        value[k] = keys.see(j + k)
                       ? exponential<kFast>(capped(call.softcap, value[k]) - total.top) * inverse
                       : 0.0F;
      }
    }
    store<N>(x + j, value);
    if (call.dropped == nullptr) continue;
    float factor[N];
    call.mask.factors(keys.global + j, true, factor);
    write_dropped<N>(call.dropped + keys.offset + j, value, factor);
  }
}

/// The gradient of N probabilities from the dropped ones' gradient; 0 for masked keys.
template <int N, class T>
__device__ void load_gradient(const SoftmaxCall<T>& call, const Keys<T>& keys, Dim j,
                              float (&gradient)[N], float (&factor)[N]) {
  load<N>(call.x + keys.offset + j, gradient);
  if (call.dropped != nullptr) call.mask.factors(keys.global + j, true, factor);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (call.dropped == nullptr) factor[k] = 1;
    gradient[k] = keys.see(j + k) && factor[k] != 0 ? gradient[k] * factor[k] : 0.0F;
  }
}

template <int N, bool kBlock, class T>
__global__ void __launch_bounds__(256) masked_softmax_backward_kernel(SoftmaxCall<T> call) {
  __shared__ float scratch[32];
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const Keys<T> keys(call, row);
  const Dim first = static_cast<Dim>(threadIdx.x) * N;
  const Dim stride = static_cast<Dim>(blockDim.x) * N;
  float dot = 0;
  for (Dim j = keys.first_of(first, stride); j < keys.end; j += stride) {
    float probability[N];
    float gradient[N];
    float factor[N];
    load<N>(call.probabilities + keys.offset + j, probability);
    load_gradient(call, keys, j, gradient, factor);
#pragma unroll
    for (int k = 0; k < N; ++k) dot += probability[k] * gradient[k];
  }
  dot = row_sum<kBlock>(dot, scratch);
  for (Dim j = first; j < call.tokens; j += stride) {
    float probability[N];
    float gradient[N];
    float factor[N];
    load<N>(call.probabilities + keys.offset + j, probability);
    load_gradient(call, keys, j, gradient, factor);
    if (call.dropped != nullptr) {
      write_dropped<N>(call.dropped + keys.offset + j, probability, factor);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      gradient[k] = keys.see(j + k) ? probability[k] * (gradient[k] - dot) * call.scale : 0.0F;
    }
    if (call.scores != nullptr) {
      float score[N];
      load<N>(call.scores + keys.offset + j, score);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float part = tanhf(score[k] / call.softcap);
        gradient[k] *= 1.0F - part * part;
      }
    }
    store<N>(call.x + keys.offset + j, gradient);
  }
}

template <int N, bool kBlock, class T>
void launch(Context& ctx, const SoftmaxCall<T>& call) {
  const dim3 threads = kBlock ? dim3(256, 1) : dim3(32, 8);
  const auto blocks = static_cast<unsigned>(ceil_divide(call.rows, threads.y));
  cudaStream_t stream = ctx.stream().cuda();
  if (call.probabilities == nullptr) {
    masked_softmax_kernel<N, kBlock><<<blocks, threads, 0, stream>>>(call);
  } else {
    masked_softmax_backward_kernel<N, kBlock><<<blocks, threads, 0, stream>>>(call);
  }
  check_launch("masked_softmax");
}

template <class T>
void launch(Context& ctx, const SoftmaxCall<T>& call) {
  constexpr int N = kVector<T>;
  const bool vectors =
      call.tokens % N == 0 && aligned(call.probabilities, call.scores, call.x, call.dropped);
  if (call.tokens > kWarpTokens) {
    vectors ? launch<N, true>(ctx, call) : launch<1, true>(ctx, call);
  } else {
    vectors ? launch<N, false>(ctx, call) : launch<1, false>(ctx, call);
  }
}

template <class T>
SoftmaxCall<T> call_of(const SoftmaxRows& rows, const Dropout& dropout, View x, View dropped) {
  const auto [B, H, tokens, keys] = x.dims<4>("masked_softmax scores");
  require(tokens == keys, "masked_softmax scores: expected squares");
  SoftmaxCall<T> call;
  call.rows = B * H * tokens;
  call.tokens = tokens;
  call.per_sample = H * tokens * tokens;
  call.sample_rows = H * tokens;
  call.causal = rows.mask.kind == AttentionMask::Kind::causal;
  call.window = rows.mask.window;
  if (rows.first_keys) call.first_keys = rows.first_keys.data<std::int32_t>();
  call.softcap = rows.softcap;
  if (rows.sinks.logits) call.sinks = rows.sinks.logits.data<T>();
  if (rows.sinks.weights) call.sink_weights = rows.sinks.weights.data<float>();
  call.x = x.data<T>();
  if (dropout.active()) {
    call.mask_sample = mask_heads(dropout, H) * tokens * tokens;
    call.mask_first = dropout.first_head * tokens * tokens;
    call.mask = mask_of(dropout);
    call.dropped = dropped.data<T>();
  }
  return call;
}

}  // namespace

void masked_softmax_forward(Context& ctx, const SoftmaxRows& rows, const Dropout& dropout,
                            View scores, View dropped) {
  if (scores.numel() == 0) return;
  with_element(scores.dtype(), "masked_softmax_forward",
               [&]<class T>(T) { launch(ctx, call_of<T>(rows, dropout, scores, dropped)); });
}

void masked_softmax_backward(Context& ctx, const SoftmaxRows& rows, float scale,
                             const Dropout& dropout, const SoftmaxSaved& saved, View dprobabilities,
                             View dropped) {
  if (dprobabilities.numel() == 0) return;
  with_element(dprobabilities.dtype(), "masked_softmax_backward", [&]<class T>(T) {
    SoftmaxCall<T> call = call_of<T>(rows, dropout, dprobabilities, dropped);
    call.scale = scale;
    call.probabilities = saved.probabilities.data<T>();
    if (rows.softcap > 0) call.scores = saved.scores.data<T>();
    launch(ctx, call);
  });
}

}  // namespace hyperslab::ops::cuda
