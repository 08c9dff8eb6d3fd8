// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/quantized.cuh"

// Bits must equal the CPU's, so that nothing here may become a fused multiply-add.

namespace hyperslab::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr Dim kWarpGroup = 1024;  // larger groups take a block each

/// The larger of two magnitudes; their bits are ordered as they are, with infinity and NaN above
/// all numbers, so that neither gets lost.
__device__ float larger(float a, float b) {
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

/// True if values can be divided by a scale; if not, the codes of its group stand for zero.
__device__ bool divides(float scale) { return scale > 0 && scale < INFINITY; }

/// The destination of rounded weights. Without codes the rounded values go to `out` (fake
/// quantization); without both only scales are found.
template <class T, WeightFormat kFormat>
struct Rounding {
  using Scale = typename StoredScale<kFormat>::Type;
  const T* weight;
  Dim groups;
  Dim group;
  std::uint8_t* codes;
  Scale* scales;
  float* block_scales;
  T* out;
  NormalFloat table;
  const Scale* given = nullptr;  ///< scales that are not looked for; int8

  [[nodiscard]] __device__ int code(float value, float scale) const {
    const float ratio = divides(scale) ? __fdiv_rn(value, scale) : 0.0F;
    if constexpr (kFormat == WeightFormat::nf4) {
      int above = 0;
#pragma unroll
      for (int i = 0; i < 15; ++i) above += ratio > table.middles[i] ? 1 : 0;
      return above;
    } else {
      constexpr int kLargest = kFormat == WeightFormat::int8 ? 127 : 7;
      return max(-kLargest, min(kLargest, __float2int_rn(ratio)));
    }
  }
  /// `values`: NF4's.
  [[nodiscard]] __device__ static float value(int code, float scale, const float* values) {
    return __fmul_rn(kFormat == WeightFormat::nf4 ? values[code] : static_cast<float>(code), scale);
  }

  /// Elements i to i + N; one by one if there are no more than two, which need not be aligned.
  template <int N>
  __device__ void read(Dim i, float (&element)[N]) const {
    if constexpr (N > 2) {
      load<N>(weight + i, element);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) element[k] = to_real(weight[i + k]);
    }
  }
  template <int N>
  __device__ void write(Dim i, const float (&element)[N]) const {
    if constexpr (N > 2) {
      store<N>(out + i, element);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) out[i + k] = from_real<T>(element[k]);
    }
  }
  /// Codes of elements i to i + N.
  template <int N>
  __device__ void write_codes(Dim i, const int (&code)[N]) const {
    if constexpr (kFormat == WeightFormat::int8) {
      Vec<std::uint8_t, N> bytes;
#pragma unroll
      for (int k = 0; k < N; ++k) bytes.at[k] = static_cast<std::uint8_t>(code[k]);
      *reinterpret_cast<Vec<std::uint8_t, N>*>(codes + i) = bytes;
    } else {
      static_assert(N % 2 == 0);
      constexpr int kOffset = kFormat == WeightFormat::nf4 ? 0 : 8;
      Vec<std::uint8_t, N / 2> bytes;
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        bytes.at[k / 2] =
            static_cast<std::uint8_t>((code[k] + kOffset) | (code[k + 1] + kOffset) << 4);
      }
      *reinterpret_cast<Vec<std::uint8_t, N / 2>*>(codes + i / 2) = bytes;
    }
  }

  /// Rounds elements i to i + N, of one group.
  template <int N>
  __device__ void round(Dim i, float scale, const float* values) const {
    float element[N];
    read(i, element);
    int rounded_to[N];
#pragma unroll
    for (int k = 0; k < N; ++k) rounded_to[k] = code(element[k], scale);
    if (codes != nullptr) return write_codes(i, rounded_to);
#pragma unroll
    for (int k = 0; k < N; ++k) element[k] = value(rounded_to[k], scale, values);
    write(i, element);
  }
  template <int N>
  [[nodiscard]] __device__ float magnitude(Dim i) const {
    float element[N];
    read(i, element);
    float amax = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) amax = larger(amax, fabsf(element[k]));
    return amax;
  }
};

__device__ float warp_max(float value, int team) {
  for (int offset = team / 2; offset > 0; offset >>= 1) {
    value = larger(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  return value;
}

/// The largest over a block of kThreads; scratch: a value for every warp.
__device__ float block_max(float value, float* scratch) {
  value = warp_max(value, 32);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float amax = scratch[0];
  for (int warp = 1; warp < kThreads / 32; ++warp) amax = larger(amax, scratch[warp]);
  return amax;
}

/// int8 and int4: a team of `team` threads, a part of a warp or a block, takes a group.
template <int N, class T, WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) round_kernel(Rounding<T, kFormat> op, int team) {
  using Scale = typename Rounding<T, kFormat>::Scale;
  __shared__ float scratch[kThreads / 32];
  overlap();
  wait_for_earlier();
  const Dim index = static_cast<Dim>(blockIdx.x) * (kThreads / team) + threadIdx.x / team;
  const bool present = index < op.groups;
  const Dim first = index * op.group;
  const Dim own = threadIdx.x % team * N;
  float scale = 0;
  if (op.given != nullptr) {
    if (!present) return;
    scale = to_real(op.given[index]);
  } else {
    float amax = 0;
    for (Dim i = own; present && i < op.group; i += team * N) {
      amax = larger(amax, op.template magnitude<N>(first + i));
    }
    amax = team == kThreads ? block_max(amax, scratch) : warp_max(amax, team);
    if (!present) return;
    constexpr float kLargest = kFormat == WeightFormat::int8 ? 127.0F : 7.0F;
    const Scale stored = from_real<Scale>(__fdiv_rn(amax, kLargest));
    if (op.scales != nullptr && own == 0) op.scales[index] = stored;
    scale = to_real(stored);
  }
  if (op.codes == nullptr && op.out == nullptr) return;
  for (Dim i = own; i < op.group; i += team * N) op.template round<N>(first + i, scale, nullptr);
}

/// nf4: a block takes the groups of one block scale; a team of 64 / N threads takes a group.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) round_normal_kernel(Rounding<T, WeightFormat::nf4> op) {
  static_assert(kThreads == kScaleBlock);
  constexpr int kTeam = std::min<int>(32, kNormalFloatGroup / N);
  constexpr int kAtOnce = kThreads / kTeam;
  __shared__ float scratch[kThreads / 32];
  __shared__ float scales[kScaleBlock];
  __shared__ float values[16];
  if (threadIdx.x < 16) values[threadIdx.x] = op.table.values[threadIdx.x];
  const Dim first = static_cast<Dim>(blockIdx.x) * kScaleBlock;
  const int groups = static_cast<int>(min(kScaleBlock, op.groups - first));
  const Dim own = threadIdx.x % kTeam * N;
  for (int begin = 0; begin < groups; begin += kAtOnce) {
    const int index = begin + static_cast<int>(threadIdx.x) / kTeam;
    float amax = 0;
    for (Dim i = own; index < groups && i < kNormalFloatGroup; i += kTeam * N) {
      const Dim element = (first + index) * kNormalFloatGroup + i;
      amax = larger(amax, op.template magnitude<N>(element));
    }
    amax = warp_max(amax, kTeam);
    if (own == 0 && index < groups) scales[index] = amax;
  }
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const float scale = thread < groups ? scales[thread] : 0.0F;
  const float block_scale = __fdiv_rn(block_max(scale, scratch), 255.0F);
  if (op.codes != nullptr && thread == 0) op.block_scales[blockIdx.x] = block_scale;
  if (thread < groups) {
    const float ratio = divides(block_scale) ? __fdiv_rn(scale, block_scale) : 0.0F;
    const int code = max(0, min(255, __float2int_rn(ratio)));
    if (op.codes != nullptr) op.scales[first + thread] = static_cast<std::uint8_t>(code);
    scales[thread] = __fmul_rn(static_cast<float>(code), block_scale);
  }
  __syncthreads();
  for (int index = thread / kTeam; index < groups; index += kAtOnce) {
    for (Dim i = own; i < kNormalFloatGroup; i += kTeam * N) {
      op.template round<N>((first + index) * kNormalFloatGroup + i, scales[index], values);
    }
  }
}

/// Threads for a group: the smallest power of two that reads it at once, of a warp or a block.
int team_of(Dim group, int width) {
  if (group > kWarpGroup) return kThreads;
  int team = 1;
  while (team < 32 && team * width < group) team *= 2;
  return team;
}

template <int N, class T, WeightFormat kFormat>
void launch_rounding(Context& ctx, const Rounding<T, kFormat>& op) {
  CUstream_st* stream = ctx.stream().cuda();
  if constexpr (kFormat == WeightFormat::nf4) {
    const auto blocks = static_cast<unsigned>(ceil_divide(op.groups, kScaleBlock));
    round_normal_kernel<N><<<blocks, kThreads, 0, stream>>>(op);
  } else {
    const int team = team_of(op.group, N);
    const auto blocks = static_cast<unsigned>(ceil_divide(op.groups, kThreads / team));
    launch_overlapping(ctx, "quantize", round_kernel<N, T, kFormat>, {blocks, kThreads}, op, team);
  }
}

/// Into codes or, without them, into `out`.
template <WeightFormat kFormat, class T>
void round_weights(Context& ctx, const char* name, const Rounding<T, kFormat>& op) {
  if (op.groups == 0) return;
  constexpr int N = kVector<T>;
  constexpr int kFew = kFormat == WeightFormat::int8 ? 1 : 2;  // two codes share a byte
  if (op.group % N == 0 && aligned(op.weight, op.out, op.codes)) {
    launch_rounding<N>(ctx, op);
  } else {
    launch_rounding<kFew>(ctx, op);
  }
  check_launch(name);
}

/// Widens quantized weights: a thread takes elements i to i + N of one group, and reads words of
/// codes at once if N > 1.
template <class T, WeightFormat kFormat>
struct Widening {
  QuantizedElements<kFormat> weight;
  T* out;

  template <int N>
  __device__ void codes_at(Dim i, const float* values, float (&code)[N]) const {
    if constexpr (N == 1) {
      code[0] = weight.code_at(i, values);
    } else if constexpr (kFormat == WeightFormat::int8) {
      const auto bytes = load_raw<N>(weight.codes + i);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        code[k] = static_cast<float>(static_cast<std::int8_t>(bytes.at[k]));
      }
    } else {
      const auto bytes = load_raw<N / 2>(weight.codes + i / 2);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int bits = bytes.at[k / 2] >> (k % 2 * 4) & 15;
        code[k] = kFormat == WeightFormat::nf4 ? values[bits] : static_cast<float>(bits - 8);
      }
    }
  }
  template <int N>
  __device__ void at(Dim i, Dim group_index, const float* values) const {
    float code[N];
    codes_at(i, values, code);
    const float scale = weight.scale_of(group_index);
#pragma unroll
    for (int k = 0; k < N; ++k) code[k] = __fmul_rn(code[k], scale);
    store<N>(out + i, code);
  }
};

/// `parts`: vectors of a group. Index is of 32 bits where all vectors can be counted so.
template <int N, class Index, class T, WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(Widening<T, kFormat> op, Index vectors, Index parts) {
  __shared__ float values[16];
  if constexpr (kFormat == WeightFormat::nf4) {
    if (threadIdx.x < 16) values[threadIdx.x] = op.weight.table.values[threadIdx.x];
    __syncthreads();
  }
  const Index vector = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (vector >= vectors) return;
  op.template at<N>(static_cast<Dim>(vector) * N, vector / parts, values);
}

template <int N, class Index, class T, WeightFormat kFormat>
void launch_widening(Context& ctx, const Widening<T, kFormat>& op, Dim count) {
  const Dim vectors = count / N;
  const auto blocks = static_cast<unsigned>(ceil_divide(vectors, kThreads));
  widen_kernel<N><<<blocks, kThreads, 0, ctx.stream().cuda()>>>(
      op, static_cast<Index>(vectors), static_cast<Index>(op.weight.group / N));
  check_launch("dequantize");
}

/// Groups of a matrix; rows of int8 may be empty.
Dim groups_of(WeightFormat format, Dim group, const Shape& shape) {
  return format == WeightFormat::int8 ? shape[0] : shape.numel() / group;
}

}  // namespace

void quantize(Context& ctx, CView weight, const QuantizedMatrix& out) {
  with_element(weight.dtype(), "quantize", [&]<class T>(T) {
    with_format(out.format, [&]<WeightFormat kFormat>() {
      using Scale = typename StoredScale<kFormat>::Type;
      round_weights(
          ctx, "quantize",
          Rounding<T, kFormat>{weight.data<T>(), groups_of(out.format, out.group, out.shape),
                               out.group, out.codes.data<std::uint8_t>(), out.scales.data<Scale>(),
                               optional_data<float>(out.block_scales), nullptr, normal_float()});
    });
  });
}

void fake_quantize(Context& ctx, WeightFormat format, Dim group, CView weight, View out) {
  with_element(weight.dtype(), "fake_quantize", [&]<class T>(T) {
    with_format(format, [&]<WeightFormat kFormat>() {
      round_weights(
          ctx, "fake_quantize",
          Rounding<T, kFormat>{weight.data<T>(), groups_of(format, group, weight.shape()), group,
                               nullptr, nullptr, nullptr, out.data<T>(), normal_float()});
    });
  });
}

namespace {

/// Rows of int8 whose scales are found or used alone.
void round_rows(Context& ctx, const char* name, CView weight, const QuantizedMatrix& to,
                CView given, View out) {
  const auto [M, K] = weight.dims<2>(name);
  with_element(weight.dtype(), name, [&, M = M, K = K]<class T>(T) {
    round_weights(ctx, name,
                  Rounding<T, WeightFormat::int8>{
                      weight.data<T>(), M, K, optional_data<std::uint8_t>(to.codes),
                      optional_data<float>(to.scales), nullptr, optional_data<T>(out),
                      normal_float(), optional_data<float>(given)});
  });
}

}  // namespace

void int8_row_scales(Context& ctx, CView weight, View scales) {
  QuantizedMatrix to;
  to.scales = scales;
  round_rows(ctx, "int8_row_scales", weight, to, {}, {});
}

void quantize_scaled(Context& ctx, CView weight, const QuantizedMatrix& out) {
  QuantizedMatrix to;
  to.codes = out.codes;
  round_rows(ctx, "quantize_scaled", weight, to, out.scales, {});
}

void fake_quantize_scaled(Context& ctx, CView weight, CView scales, View out) {
  round_rows(ctx, "fake_quantize_scaled", weight, {}, scales, out);
}

void dequantize(Context& ctx, const CQuantizedMatrix& weight, View out) {
  const Dim count = out.numel();
  if (count == 0) return;
  with_element(out.dtype(), "dequantize", [&]<class T>(T) {
    with_format(weight.format, [&]<WeightFormat kFormat>() {
      constexpr int N = kVector<T>;
      const Widening<T, kFormat> op = {elements_of<kFormat>(weight), out.data<T>()};
      const bool vectors = weight.group % N == 0 && aligned(op.weight.codes, op.out);
      const bool few = count <= std::numeric_limits<std::uint32_t>::max();
      if (vectors && few) return launch_widening<N, std::uint32_t>(ctx, op, count);
      if (vectors) return launch_widening<N, Dim>(ctx, op, count);
      launch_widening<1, Dim>(ctx, op, count);
    });
  });
}

}  // namespace hyperslab::ops::cuda
