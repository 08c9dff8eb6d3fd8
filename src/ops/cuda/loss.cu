// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels_common.cuh"
#include "kernels_softmax.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "softmax_cross_entropy";
constexpr int kWarpWidth = 2048;                 // vocabularies up to which a warp takes a row
constexpr std::size_t kHalfShared = 112 * 1024;  // shared memory that lets two blocks fit on Hopper

template <class T>
struct LossCall {
  Dim rows;
  int V;
  T* logits;
  const std::int32_t* targets;
  const StepState* state;
  bool gradient;
  bool keep;  ///< the row's vectors stay in shared memory between the passes
  RowLoss* out;
};

/// The row in three parts: scalars up to the first 16-byte boundary, vectors, scalars.
template <class T>
struct RowParts {
  int head;
  int vectors;
  int tail;  ///< where the last scalars begin
  __device__ RowParts(const T* row, int V) {
    constexpr int N = kVector<T>;
    const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(T));
    head = min((N - past) % N, V);
    vectors = (V - head) / N;
    tail = head + vectors * N;
  }
};

/// What one thread has seen of a row.
template <class T>
struct Seen {
  OnlineSum<sizeof(T) == 2> sum;
  bool beaten = false;  ///< something before the target equals it, or anything is larger

  /// Elements first to first + N.
  template <int N>
  __device__ void add(const float (&value)[N], int first, float at_target, int target) {
    const float largest = sum.add(value);
    if (first + N <= target) {
      beaten |= largest >= at_target;
    } else if (first >= target) {
      beaten |= largest > at_target;
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        beaten |= value[i] > at_target || (value[i] == at_target && first + i < target);
      }
    }
  }
};

template <class T>
__device__ Seen<T> read_row(const T* row, const RowParts<T>& parts, int V, int target, bool keep,
                            Vec<T, kVector<T>>* kept) {
  constexpr int N = kVector<T>;
  const float at_target = to_real(row[target]);
  Seen<T> seen;
#pragma unroll 4
  for (int v = static_cast<int>(threadIdx.x); v < parts.vectors; v += blockDim.x) {
    const int first = parts.head + v * N;
    const Vec<T, N> raw = load_raw<N>(row + first);
    if (keep) kept[v] = raw;
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = to_real(raw.at[k]);
    seen.add(value, first, at_target, target);
  }
  const auto scalar = [&](int i) {
    const float value[1] = {to_real(row[i])};
    seen.add(value, i, at_target, target);
  };
  for (int i = static_cast<int>(threadIdx.x); i < parts.head; i += blockDim.x) scalar(i);
  for (int i = parts.tail + static_cast<int>(threadIdx.x); i < V; i += blockDim.x) scalar(i);
  return seen;
}

/// x becomes e^(x - top) * factor.
template <class T>
__device__ void write_row(T* row, const RowParts<T>& parts, int V, float top, float factor,
                          bool keep, const Vec<T, kVector<T>>* kept) {
  constexpr int N = kVector<T>;
  constexpr bool kFast = sizeof(T) == 2;
#pragma unroll 2
  for (int v = static_cast<int>(threadIdx.x); v < parts.vectors; v += blockDim.x) {
    T* at = row + parts.head + v * N;
    const Vec<T, N> raw = keep ? kept[v] : load_raw<N>(at);
    float value[N];
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = exponential<kFast>(to_real(raw.at[k]) - top) * factor;
    store<N>(at, value);
  }
  const auto scalar = [&](int i) {
    row[i] = from_real<T>(exponential<kFast>(to_real(row[i]) - top) * factor);
  };
  for (int i = static_cast<int>(threadIdx.x); i < parts.head; i += blockDim.x) scalar(i);
  for (int i = parts.tail + static_cast<int>(threadIdx.x); i < V; i += blockDim.x) scalar(i);
}

/// A row that does not count: no gradient, and a target outside the vocabulary gives a loss that is
/// not a number, which the judge of the step finds.
template <class T>
__device__ void skip_row(const LossCall<T>& call, Dim row, std::int32_t target) {
  if (call.gradient) {
    for (int i = static_cast<int>(threadIdx.x); i < call.V; i += blockDim.x) {
      call.logits[row * static_cast<Dim>(call.V) + i] = from_real<T>(0.0F);
    }
  }
  if (threadIdx.x == 0) {
    call.out[row] = {target == kIgnoredTarget ? 0.0 : static_cast<double>(nanf("")), 0, 0};
  }
}

/// One row per block, or per warp where blockDim.x is 32.
template <bool kBlock, class T>
__global__ void __launch_bounds__(1024) loss_kernel(LossCall<T> call) {
  extern __shared__ uint4 shared[];
  __shared__ SoftmaxScratch scratch;
  auto* kept = reinterpret_cast<Vec<T, kVector<T>>*>(shared);
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  if (target < 0 || target >= call.V) return skip_row(call, row, target);
  T* x = call.logits + row * static_cast<Dim>(call.V);
  const RowParts<T> parts(x, call.V);
  const float at_target = to_real(x[target]);
  const Seen<T> seen = read_row(x, parts, call.V, target, call.keep, kept);
  const bool beaten = row_any<kBlock>(seen.beaten);
  const auto total = row_total<kBlock>(seen.sum, scratch);
  if (threadIdx.x == 0) {
    const double loss = log(static_cast<double>(total.sum)) + static_cast<double>(total.top) -
                        static_cast<double>(at_target);
    call.out[row] = {loss, 1, beaten || isnan(at_target) ? 0.0F : 1.0F};
  }
  if (!call.gradient) return;
  const float scale = call.state->gradient_scale;
  const float factor = scale / total.sum;
  write_row(x, parts, call.V, total.top, factor, call.keep, kept);
  row_barrier<kBlock>();
  if (threadIdx.x == 0) {
    constexpr bool kFast = sizeof(T) == 2;
    x[target] = from_real<T>(exponential<kFast>(at_target - total.top) * factor - scale);
  }
}

/// Adds the rows to sums in a fixed order. One block.
__global__ void __launch_bounds__(1024)
    sum_losses_kernel(const RowLoss* rows, Dim count, float* sums) {
  __shared__ double scratch[32];
  double loss = 0;
  double tokens = 0;
  double correct = 0;
#pragma unroll 4
  for (Dim i = threadIdx.x; i < count; i += blockDim.x) {
    const RowLoss row = rows[i];
    loss += row.loss;
    tokens += static_cast<double>(row.tokens);
    correct += static_cast<double>(row.correct);
  }
  loss = block_sum(loss, scratch);
  tokens = block_sum(tokens, scratch);
  correct = block_sum(correct, scratch);
  if (threadIdx.x != 0) return;
  sums[kSumLoss] += static_cast<float>(loss);
  sums[kSumTokens] += static_cast<float>(tokens);
  sums[kSumCorrect] += static_cast<float>(correct);
}

/// Lets a block of loss_kernel have this much shared memory; false where the device has less.
template <class T>
bool allow_shared(std::size_t bytes) {
  constexpr std::size_t kReserved = 2048;  // the kernel's own and the driver's
  int device = 0;
  int most = 0;
  HS_CUDA(kName, cudaGetDevice(&device));
  HS_CUDA(kName, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const std::size_t limit = static_cast<std::size_t>(most) - kReserved;
  if (bytes > limit) return false;
  HS_CUDA(kName, cudaFuncSetAttribute(reinterpret_cast<const void*>(&loss_kernel<true, T>),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(limit)));
  return true;
}

template <class T>
void launch(Context& ctx, LossCall<T> call) {
  cudaStream_t stream = ctx.stream().cuda();
  if (call.V <= kWarpWidth) {
    const dim3 threads(32, 4);
    const auto blocks = static_cast<unsigned>(ceil_divide(call.rows, threads.y));
    loss_kernel<false><<<blocks, threads, 0, stream>>>(call);
  } else {
    const auto bytes = static_cast<std::size_t>(call.V) * sizeof(T);
    const unsigned threads = bytes > kHalfShared ? 1024 : 512;
    call.keep = call.gradient && allow_shared<T>(bytes);
    const std::size_t shared = call.keep ? bytes : 0;
    loss_kernel<true><<<static_cast<unsigned>(call.rows), threads, shared, stream>>>(call);
  }
  HS_CUDA_LAUNCHED(kName);
}

}  // namespace

void softmax_cross_entropy(Context& ctx, View logits, CView targets, const StepState* state,
                           WithGradient gradient, View sums) {
  const auto [N, V] = logits.dims<2>("softmax_cross_entropy logits");
  if (N == 0) return;
  require(V < std::numeric_limits<int>::max() / 2, "softmax_cross_entropy logits: too wide");
  auto* rows = static_cast<RowLoss*>(ctx.workspace(kName, softmax_cross_entropy_workspace(N)));
  auto* out = sums.data<float>();
  with_element(logits.dtype(), kName, [&, N = N, V = V]<class T>(T) {
    launch<T>(ctx, {N, static_cast<int>(V), logits.data<T>(), targets.data<std::int32_t>(), state,
                    gradient == WithGradient::yes, false, rows});
  });
  sum_losses_kernel<<<1, 1024, 0, ctx.stream().cuda()>>>(rows, N, out);
  HS_CUDA_LAUNCHED(kName);
}

}  // namespace hyperslab::ops::cuda
