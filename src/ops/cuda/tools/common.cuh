// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "backend.hpp"
#include "check.hpp"
#include "checks.hpp"
#include "workspace.hpp"

namespace hyperslab::ops::cuda {

/// N elements that travel in accesses of at most 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vec {
  T at[N];
};
/// Elements of one 16-byte access.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

__device__ inline float to_real(float value) { return value; }
__device__ inline float to_real(bf16 value) {
  return __uint_as_float(static_cast<std::uint32_t>(value.bits) << 16);
}
__device__ inline float to_real(f16 value) { return __half2float(__ushort_as_half(value.bits)); }

/// Round to nearest even; NaN stays NaN.
template <class T>
__device__ T from_real(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    T out;
    if constexpr (std::is_same_v<T, bf16>) {
      out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    } else {
      out.bits = __half_as_ushort(__float2half_rn(value));
    }
    return out;
  }
}
/// The value after it was stored as T.
template <class T>
__device__ float rounded(float value) {
  return to_real(from_real<T>(value));
}

template <int N, class T>
__device__ Vec<T, N> load_raw(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <int N, class T>
__device__ void load(const T* from, float (&to)[N]) {
  const Vec<T, N> raw = load_raw<N>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = to_real(raw.at[i]);
}
template <int N, class T>
__device__ void store(T* to, const float (&from)[N]) {
  Vec<T, N> raw;
#pragma unroll
  for (int i = 0; i < N; ++i) raw.at[i] = from_real<T>(from[i]);
  *reinterpret_cast<Vec<T, N>*>(to) = raw;
}

/// True if all addresses allow 16-byte accesses; null does.
template <class... Pointers>
[[nodiscard]] bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls body(float()), body(bf16()) or body(f16()).
template <class Body>
void with_element(DType dtype, const char* op, Body&& body) {
  switch (dtype) {
    case DType::f32: return std::forward<Body>(body)(float());
    case DType::bf16: return std::forward<Body>(body)(bf16());
    case DType::f16: return std::forward<Body>(body)(f16());
    case DType::f64:
      throw Error(ExitCode::internal, std::string(op) + ": f64 runs on the CPU only");
    default:
      throw Error(ExitCode::internal, std::string(op) + ": expected f32, bf16 or f16, found " +
                                          std::string(name_of(dtype)));
  }
}

/// Calls body with the elements of a parameter's gradient, in f32 or bf16.
template <class Body>
void with_gradient(CView gradient, Body&& body) {
  if (gradient.dtype() == DType::bf16) return std::forward<Body>(body)(gradient.data<bf16>());
  std::forward<Body>(body)(gradient.data<float>());
}

/// The elements, or null if the view is absent.
template <class T>
const T* optional_data(CView view) {
  return view ? view.data<T>() : nullptr;
}
template <class T>
T* optional_data(View view) {
  return view ? view.data<T>() : nullptr;
}

/// The gradient of parameters as kernels read and write it: in f32, or in bf16.
struct ParamGradient {
  void* data = nullptr;  ///< null: there is none
  bool narrow = false;   ///< in bf16

  ParamGradient() = default;
  ParamGradient(View view) : data(view ? view.raw() : nullptr) {
    narrow = view && view.dtype() == DType::bf16;
  }
  template <int N>
  __device__ void load(Dim i, float (&to)[N]) const {
    if (narrow) return cuda::load<N>(static_cast<const bf16*>(data) + i, to);
    cuda::load<N>(static_cast<const float*>(data) + i, to);
  }
  template <int N>
  __device__ void store(Dim i, const float (&from)[N]) const {
    if (narrow) return cuda::store<N>(static_cast<bf16*>(data) + i, from);
    cuda::store<N>(static_cast<float*>(data) + i, from);
  }
  /// Writes `values` to elements i to i + N, or adds them.
  template <int N>
  __device__ void put(Dim i, bool accumulate, const float (&values)[N]) const {
    float total[N] = {};
    if (accumulate) load<N>(i, total);
#pragma unroll
    for (int k = 0; k < N; ++k) total[k] += values[k];
    store<N>(i, total);
  }
};

/// A position as kernels read it.
struct LivePosition {
  Dim value;
  const std::int32_t* live;
  bool differs;  ///< from sample to sample
  /// The position of a batch whose samples do not differ.
  [[nodiscard]] __device__ Dim get() const { return live == nullptr ? value : *live; }
  [[nodiscard]] __device__ Dim of(Dim sample) const {
    return live == nullptr ? value : live[differs ? sample : 0];
  }
};
[[nodiscard]] inline LivePosition live_position(const TokenPosition& position) {
  return {position.value, optional_data<std::int32_t>(position.live),
          position.live && position.live.numel() > 1};
}

// Programmatic dependent launch: the blocks of a kernel start while the kernel before it still
// runs, and wait beside it, which hides the launch. Every kernel that is launched so calls
// overlap() and, in every thread before it touches another kernel's memory, wait_for_earlier().
// Memory that may be written before the wait is not read through the read-only cache (__ldg).
//
// The wait is for the end of the kernel before, however early that called overlap(), and for no
// other one: in a row of A, B and C, C knows of A only that B has ended. So B must not end before A
// has, also if it touches nothing of A's: it waits itself, or is launched the ordinary way, as
// libraries' kernels are. A kernel that returns before it waits breaks the row for all after it.
// One kernel waits at its end alone: the one for keys in attention/warpgroup_backward.cu, which
// reads values that the one before it has written before it calls overlap().

/// True if all machine code in this build has the instructions.
inline constexpr bool kOverlaps = [] {
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture < 900) return false;
  }
  return true;
}();

/// Lets the next kernel start as soon as all blocks of this one have called it.
__device__ inline void overlap() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until all that was enqueued before this kernel has ended and can be read.
__device__ inline void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The sizes of a launch.
struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared = 0;  ///< bytes of dynamic shared memory
  unsigned cluster = 1;    ///< neighboring blocks that run together
};

/// Launches a kernel which, if it overlaps, starts beside the one before.
template <class... Parameters>
void launch_beside(Context& ctx, const char* op, bool overlaps, void (*kernel)(Parameters...),
                   const Grid& grid, const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (kOverlaps && overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {grid.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared;
  config.stream = ctx.stream().cuda();
  config.attrs = attributes;
  config.numAttrs = count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), op, "kernel launch");
}

/// Launches a kernel that calls overlap() and reads parameters before wait_for_earlier(): it
/// overlaps if they do not change (Context::fixed_parameters).
template <class... Parameters>
void launch_overlapping(Context& ctx, const char* op, void (*kernel)(Parameters...),
                        const Grid& grid, const std::type_identity_t<Parameters>&... arguments) {
  launch_beside<Parameters...>(ctx, op, ctx.fixed_parameters(), kernel, grid, arguments...);
}

/// True if a kernel that reads nothing before it waits overlaps, of a pass over so many rows
/// (tokens). A step of 1,024 is 3 to 5 % faster so, one of 8,192 still 1 %; large ones, whose
/// launches weigh little, took up to 1.4 % longer (analysis/results/kernels-h200.txt, item 4).
[[nodiscard]] inline bool waits_beside(const Context& ctx, Dim rows) {
  constexpr Dim kMostRows = 8192;
  return rows <= kMostRows || ctx.fixed_parameters();
}
/// The rows of a pass over a view; a flat view's rows are its elements.
[[nodiscard]] inline Dim rows_of(CView view) {
  return view.shape().rank() < 2 ? view.numel() : leading(view.shape());
}
/// For kernels of one block, which leave room for any other.
inline constexpr Dim kOneBlock = 1;

/// Launches a kernel that calls overlap(), then wait_for_earlier() before it reads or writes, in a
/// pass over so many rows.
template <class... Parameters>
void launch_waiting(Context& ctx, const char* op, Dim rows, void (*kernel)(Parameters...),
                    const Grid& grid, const std::type_identity_t<Parameters>&... arguments) {
  launch_beside<Parameters...>(ctx, op, waits_beside(ctx, rows), kernel, grid, arguments...);
}

template <int N, class Op>
__global__ void __launch_bounds__(256) each_kernel(Op op, Dim count) {
  overlap();
  wait_for_earlier();
  const Dim first = static_cast<Dim>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Dim stride = static_cast<Dim>(gridDim.x) * blockDim.x;
  const Dim vectors = count / N;
  for (Dim v = first; v < vectors; v += stride) op.template at<N>(v * N);
  if constexpr (N > 1) {
    const Dim rest = vectors * N + first;
    if (rest < count) op.template at<1>(rest);
  }
}

/// Runs op.at<N>(i) on elements i to i + N, all of [0, count) once: with N = Op::kWidth if
/// `vectors`, else one by one. `rows`: see launch_waiting.
template <class Op>
void for_each(Context& ctx, const char* name, Dim rows, Dim count, bool vectors, const Op& op) {
  if (count == 0) return;
  constexpr Dim kThreads = 256;
  constexpr Dim kMaxBlocks = Dim{1} << 20;
  const Dim items = vectors ? ceil_divide(count, Op::kWidth) : count;
  const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, ceil_divide(items, kThreads)));
  const auto kernel = vectors ? each_kernel<Op::kWidth, Op> : each_kernel<1, Op>;
  launch_waiting(ctx, name, rows, kernel, {blocks, kThreads}, op, count);
}
/// Likewise on all elements of a view.
template <class Op>
void for_each(Context& ctx, const char* name, CView all, bool vectors, const Op& op) {
  for_each(ctx, name, rows_of(all), all.numel(), vectors, op);
}

// Reductions by butterflies and then warp by warp: a fixed order, so that two runs give the same
// bits, and the same bits in every thread.

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  }
  return value;
}

/// The sum over a block of whole warps in one dimension. scratch: 32 values of shared memory, free
/// for reuse at once.
template <class T>
__device__ T block_sum(T value, T* scratch) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  T total = scratch[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x / 32); ++warp) total += scratch[warp];
  return total;
}

}  // namespace hyperslab::ops::cuda
