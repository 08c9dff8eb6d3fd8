// SPDX-License-Identifier: Apache-2.0
#include "candidate.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

/// Sums of weights are exact and the same in any order: multiples of 2^-40.
using Mass = unsigned long long;
constexpr float kUnits = 0x1p40F;

template <class T>
struct SampleCall {
  const T* logits;
  const TokenChoice* choices;
  std::int32_t* index;
  Dim V;
  Dim columns;
};

/// Values that the threads of a block share.
struct Shared {
  Mass sums[kDigits];        ///< weight of the candidates with each digit, or their number
  unsigned counts[kDigits];  ///< number of the candidates with each digit
  Mass of_warps[kWarps];
  Found found[kWarps];
  Mass above;          ///< sum of the digits above the chosen one
  int digit;           ///< the chosen one
  std::int32_t token;  ///< the drawn one
};

/// The sum over the warps; the same in every thread. Free for reuse at once.
__device__ Mass block_total(Mass value, Mass* of_warps) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  Mass total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += of_warps[warp];
  return total;
}

/// The sum over the lanes up to this one.
__device__ Mass warp_scan(Mass value) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass before = __shfl_up_sync(0xFFFFFFFFU, value, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) value += before;
  }
  return value;
}

/// One row of logits and the block that chooses from it; N logits in an access.
template <int N, class T>
class Row {
 public:
  __device__ Row(const SampleCall<T>& call, Shared& shared)
      : logits_(call.logits + static_cast<Dim>(blockIdx.x) * call.columns),
        V_(call.V),
        choice_(call.choices[blockIdx.x]),
        shared_(shared) {}

  __device__ std::int32_t choose() {
    Found found;
    for (Dim first = threadIdx.x * N; first < V_; first += kThreads * N) {
      float value[N];
      load<N>(logits_ + first, value);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (first + i < V_) found.look_at(value[i], first + i);
      }
    }
    found = merge_warps(found, shared_.found);
    if (found.is_bad || found.best == 0) return -1;
    if (choice_.temperature == 0) return column_of(found.best);
    top_ = value_of(found.best);
    temperature_ = fmaxf(static_cast<float>(choice_.temperature), 1e-30F);
    if (choice_.top_k > 0 && choice_.top_k < V_) cut_to_top_k();
    if (choice_.top_p < 1) cut_to_top_p();
    least_weight_ = static_cast<float>(choice_.min_p);
    return draw();
  }

 private:
  /// body(value, candidate) of the thread's kept logits; -infinity is never one.
  template <class Body>
  __device__ void each_kept(Body&& body) const {
    for (Dim first = threadIdx.x * N; first < V_; first += kThreads * N) {
      float value[N];
      load<N>(logits_ + first, value);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Candidate here = candidate(value[i], first + i);
        if (first + i < V_ && value[i] >= -3.402823466e38F && here >= least_) body(value[i], here);
      }
    }
  }
  [[nodiscard]] __device__ Mass mass(float value) const {
    const float weight = expf((value - top_) / temperature_);
    return weight < least_weight_ ? 0 : __float2ull_rn(weight * kUnits);
  }

  /// Cuts candidates below `found`, which may itself lie below an earlier cut.
  __device__ void cut_below(Candidate found) { least_ = max(least_, found); }
  __device__ void cut_to_top_k() {
    const auto one = [](float) { return Mass{1}; };
    const auto k = static_cast<Mass>(choice_.top_k);
    if (total(one) > k) cut_below(reach(k, one));
  }
  __device__ void cut_to_top_p() {
    const auto of = [this](float value) { return mass(value); };
    const Mass all = total(of);
    const double goal = ceil(choice_.top_p * static_cast<double>(all));
    const Mass within = min(all, static_cast<Mass>(goal));
    cut_below(reach(max(within, Mass{1}), of));
  }
  template <class Measure>
  [[nodiscard]] __device__ Mass total(Measure&& measure) const {
    Mass sum = 0;
    each_kept([&](float value, Candidate) { sum += measure(value); });
    return block_total(sum, shared_.of_warps);
  }

  /// The smallest candidate of the fewest likeliest ones whose measures together reach `goal`.
  /// Found by a radix search, digit by digit.
  template <class Measure>
  [[nodiscard]] __device__ Candidate reach(Mass goal, Measure&& measure) const {
    Candidate found = 0;
    Mass held = 0;  // by candidates above all that begin with the digits so far
    for (int shift = 64 - kDigitBits; shift >= 0; shift -= kDigitBits) {
      sum_digits(found, shift, measure);
      if (threadIdx.x < 32) choose_digit(goal - held);
      __syncthreads();
      found |= static_cast<Candidate>(shared_.digit) << shift;
      held += shared_.above;
      const bool takes_all =
          shared_.counts[shared_.digit] == 1 || held + shared_.sums[shared_.digit] == goal;
      __syncthreads();
      if (takes_all) break;
    }
    return found;
  }
  /// Counts and sums of the candidates that begin as `begin` does, by their digit at `shift`.
  /// Neighbors mostly share it, so that a thread adds a run of them at once.
  template <class Measure>
  __device__ void sum_digits(Candidate begin, int shift, Measure&& measure) const {
    if (threadIdx.x < kDigits) {
      shared_.sums[threadIdx.x] = 0;
      shared_.counts[threadIdx.x] = 0;
    }
    __syncthreads();
    const Candidate mask = shift == 64 - kDigitBits ? 0 : ~Candidate{0} << (shift + kDigitBits);
    int run = 0;
    Mass sum = 0;
    unsigned count = 0;
    const auto add_run = [&] {
      if (count == 0) return;
      atomicAdd(&shared_.sums[run], sum);
      atomicAdd(&shared_.counts[run], count);
    };
    each_kept([&](float value, Candidate here) {
      if ((here & mask) != begin) return;
      const int digit = static_cast<int>(here >> shift & (kDigits - 1));
      if (digit != run) {
        add_run();
        run = digit;
        sum = 0;
        count = 0;
      }
      sum += measure(value);
      ++count;
    });
    add_run();
    __syncthreads();
  }
  /// The first warp: the digit, from the largest down, whose sum reaches `missing`. A lane has
  /// eight digits.
  __device__ void choose_digit(Mass missing) const {
    constexpr int kOfLane = kDigits / 32;
    const int lane = static_cast<int>(threadIdx.x);
    const int first = kDigits - 1 - lane * kOfLane;
    Mass sum = 0;
    for (int i = 0; i < kOfLane; ++i) sum += shared_.sums[first - i];
    Mass above = warp_scan(sum) - sum;
    if (above >= missing || above + sum < missing) return;
    int digit = first;
    while (above + shared_.sums[digit] < missing) above += shared_.sums[digit--];
    shared_.above = above;
    shared_.digit = digit;
  }

  /// The token, in their order, at which the sum of weights passes the drawn part of all of it.
  [[nodiscard]] __device__ std::int32_t draw() const {
    const auto of = [this](float value) { return mass(value); };
    const Mass goal = __umul64hi(choice_.draw, total(of));
    Mass before = 0;
    for (Dim start = 0; start < V_; start += kThreads * N) {
      const Dim first = start + threadIdx.x * N;
      Mass masses[N];
      const Mass sum = masses_at(first, masses);
      const Mass of_warp = warp_scan(sum);
      __syncthreads();
      if (threadIdx.x % 32 == 31) shared_.of_warps[threadIdx.x / 32] = of_warp;
      __syncthreads();
      Mass passed = before + of_warp - sum;  // by all threads before this one
      for (int warp = 0; warp < kWarps; ++warp) {
        if (warp < static_cast<int>(threadIdx.x) / 32) passed += shared_.of_warps[warp];
        before += shared_.of_warps[warp];
      }
      if (passed <= goal && goal < passed + sum) {
        int i = 0;
        while (passed + masses[i] <= goal) passed += masses[i++];
        shared_.token = static_cast<std::int32_t>(first) + i;
      }
      if (before > goal) break;
    }
    __syncthreads();
    return shared_.token;
  }
  __device__ Mass masses_at(Dim first, Mass (&masses)[N]) const {
    Mass sum = 0;
    float value[N];
    if (first < V_) load<N>(logits_ + first, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool kept = first + i < V_ && value[i] >= -3.402823466e38F &&
                        candidate(value[i], first + i) >= least_;
      masses[i] = kept ? mass(value[i]) : 0;
      sum += masses[i];
    }
    return sum;
  }

  const T* logits_;
  Dim V_;
  TokenChoice choice_;
  Shared& shared_;
  float top_ = 0;  ///< the largest logit
  float temperature_ = 1;
  float least_weight_ = 0;
  Candidate least_ = 0;  ///< smallest that is kept
};

/// A block a row.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) sample_kernel(SampleCall<T> call) {
  __shared__ Shared shared;
  overlap();
  wait_for_earlier();
  const std::int32_t token = Row<N, T>(call, shared).choose();
  if (threadIdx.x == 0) call.index[blockIdx.x] = token;
}

}  // namespace

void sample(Context& ctx, CView logits, Dim V, CView choices, View index) {
  if (logits.numel() == 0) return;
  with_element(logits.dtype(), "sample", [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const auto [rows, columns] = logits.dims<2>("sample logits");
    const SampleCall<T> call = {logits.data<T>(),
                                reinterpret_cast<const TokenChoice*>(choices.raw()),
                                index.data<std::int32_t>(), V, columns};
    const bool vectors = columns % N == 0 && aligned(call.logits);
    launch_overlapping(ctx, "sample", vectors ? sample_kernel<N, T> : sample_kernel<1, T>,
                       {{static_cast<unsigned>(rows)}, kThreads}, call);
  });
}

}  // namespace hyperslab::ops::cuda
