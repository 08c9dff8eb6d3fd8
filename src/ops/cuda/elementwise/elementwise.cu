// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "cuda/tools/reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

template <class T>
struct Add {
  static constexpr int kWidth = kVector<T>;
  const T* a;
  const T* b;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    float left[N];
    float right[N];
    load<N>(a + i, left);
    load<N>(b + i, right);
#pragma unroll
    for (int k = 0; k < N; ++k) left[k] += right[k];
    store<N>(y + i, left);
  }
};

template <class T, class Y>
struct Scale {
  static constexpr int kWidth = std::max(kVector<T>, kVector<Y>);
  float scale;
  const T* x;
  Y* y;
  template <int N>
  __device__ void at(Dim i) const {
    float values[N];
    load<N>(x + i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] *= scale;
    store<N>(y + i, values);
  }
};

template <class T>
struct SoftCap {
  static constexpr int kWidth = kVector<T>;
  float cap;
  const T* x;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    float value[N];
    load<N>(x + i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = cap * tanhf(value[k] / cap);
    store<N>(y + i, value);
  }
};

template <class T>
struct SoftCapGradient {
  static constexpr int kWidth = kVector<T>;
  float inverse;
  const T* y;
  const T* dy;
  T* dx;
  template <int N>
  __device__ void at(Dim i) const {
    float capped[N];
    float gradient[N];
    load<N>(y + i, capped);
    load<N>(dy + i, gradient);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float part = capped[k] * inverse;
      gradient[k] *= 1.0F - part * part;
    }
    store<N>(dx + i, gradient);
  }
};

struct Fill {
  static constexpr int kWidth = 4;
  float value;
  float* y;
  template <int N>
  __device__ void at(Dim i) const {
    float values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = value;
    store<N>(y + i, values);
  }
};

template <class From, class To>
struct Cast {
  static constexpr int kWidth = std::max(kVector<From>, kVector<To>);
  const From* x;
  To* y;
  template <int N>
  __device__ void at(Dim i) const {
    float values[N];
    load<N>(x + i, values);
    store<N>(y + i, values);
  }
};

/// The partial sums in double, in a fixed order; the result goes to all threads.
__device__ double total_of(const SquareSum* partial, int parts, double* scratch) {
  double squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += static_cast<int>(blockDim.x)) {
    squares += partial[i].squares;
  }
  return block_sum(squares, scratch);
}

__global__ void root_mean_square_kernel(const SquareSum* partial, int parts, double count,
                                        float* out) {
  __shared__ double scratch[32];
  const double squares = total_of(partial, parts, scratch);
  if (threadIdx.x == 0) *out = static_cast<float>(sqrt(squares / count));
}

}  // namespace

void add(Context& ctx, CView a, CView b, View y) {
  with_element(a.dtype(), "add", [&]<class T>(T) {
    const Add<T> op = {a.data<T>(), b.data<T>(), y.data<T>()};
    for_each(ctx, "add", y, aligned(op.a, op.b, op.y), op);
  });
}

void scale(Context& ctx, float scale, CView x, View y) {
  const auto run = [&]<class T, class Y>(T, Y) {
    const Scale<T, Y> op = {scale, x.data<T>(), y.data<Y>()};
    for_each(ctx, "scale", x, aligned(op.x, op.y), op);
  };
  with_element(x.dtype(), "scale", [&]<class T>(T element) {
    if (y.dtype() == x.dtype()) return run(element, element);
    run(element, 0.0F);
  });
}

void softcap(Context& ctx, float cap, CView x, View y) {
  with_element(x.dtype(), "softcap", [&]<class T>(T) {
    const SoftCap<T> op = {cap, x.data<T>(), y.data<T>()};
    for_each(ctx, "softcap", y, aligned(op.x, op.y), op);
  });
}

void softcap_backward(Context& ctx, float cap, CView y, CView dy, View dx) {
  with_element(y.dtype(), "softcap_backward", [&]<class T>(T) {
    const SoftCapGradient<T> op = {1.0F / cap, y.data<T>(), dy.data<T>(), dx.data<T>()};
    for_each(ctx, "softcap_backward", y, aligned(op.y, op.dy, op.dx), op);
  });
}

void fill(Context& ctx, float value, View y) {
  if (value == 0) {
    if (y.bytes() == 0) return;
    return check_cuda(cudaMemsetAsync(y.raw(), 0, y.bytes(), ctx.stream().cuda()), "fill",
                      "cudaMemsetAsync");
  }
  with_element(y.dtype(), "fill", [&]<class T>(T) {
    if constexpr (sizeof(T) == 4) {
      const Fill op = {value, y.data<float>()};
      for_each(ctx, "fill", y, aligned(op.y), op);
    } else {
      throw Error(ExitCode::internal, "fill y: a value other than zero needs f32");
    }
  });
}

void cast(Context& ctx, CView x, View y) {
  with_element(x.dtype(), "cast", [&]<class From>(From) {
    with_element(y.dtype(), "cast", [&]<class To>(To) {
      if constexpr (std::is_same_v<From, To>) {
        if (x.bytes() == 0 || x.raw() == y.raw()) return;
        check_cuda(cudaMemcpyAsync(y.raw(), x.raw(), x.bytes(), cudaMemcpyDeviceToDevice,
                                   ctx.stream().cuda()),
                   "cast", "cudaMemcpyAsync");
      } else {
        const Cast<From, To> op = {x.data<From>(), y.data<To>()};
        for_each(ctx, "cast", x, aligned(op.x, op.y), op);
      }
    });
  });
}

void root_mean_square(Context& ctx, CView x, View out) {
  const SquareSum* partial = sum_of_squares(ctx, "root_mean_square", x);
  const auto count = static_cast<double>(std::max<Dim>(x.numel(), 1));
  root_mean_square_kernel<<<1, 256, 0, ctx.stream().cuda()>>>(
      partial, sum_of_squares_blocks(x.numel()), count, out.data<float>());
  check_launch("root_mean_square");
}

}  // namespace hyperslab::ops::cuda
