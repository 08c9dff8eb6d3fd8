// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../backend.hpp"
#include "bf16_rounding.hpp"
#include "hyperslab/core/philox.hpp"
#include "math.hpp"
#include "parallel.hpp"
#include "reduction.hpp"

namespace hyperslab::ops::cpu {
namespace {

inline double load(double value) { return value; }
inline float load(float value) { return value; }
inline float load(bf16 value) { return to_float(value); }
inline float load(f16 value) { return to_float(value); }

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bf16>) {
    return to_bf16(static_cast<float>(load(value)));
  } else if constexpr (std::is_same_v<To, f16>) {
    return to_f16(static_cast<float>(load(value)));
  } else {
    return static_cast<To>(load(value));
  }
}

}  // namespace

void add(Context& ctx, CView a, CView b, View y) {
  with_real(a.dtype(), "add", [&]<class T>(T) {
    const T* left = a.data<T>();
    const T* right = b.data<T>();
    T* out = y.data<T>();
    parallel_chunks(ctx.threads(), y.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) out[i] = left[i] + right[i];
    });
  });
}

void scale(Context& ctx, float scale, CView x, View y) {
  with_real(x.dtype(), "scale", [&]<class T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    parallel_chunks(ctx.threads(), x.numel(), 1, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) out[i] = T(scale) * in[i];
    });
  });
}

void softcap(Context& ctx, float cap, CView x, View y) {
  with_real(x.dtype(), "softcap", [&]<class T>(T) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const T most = static_cast<T>(cap);
    parallel_chunks(ctx.threads(), y.numel(), 8, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) out[i] = most * hyperbolic_tangent(in[i] / most);
    });
  });
}

void softcap_backward(Context& ctx, float cap, CView y, CView dy, View dx) {
  with_real(y.dtype(), "softcap_backward", [&]<class T>(T) {
    const T* capped = y.data<T>();
    const T* in = dy.data<T>();
    T* out = dx.data<T>();
    const T inverse = T(1) / static_cast<T>(cap);
    parallel_chunks(ctx.threads(), y.numel(), 2, [=](int, Dim begin, Dim end) {
#pragma omp simd
      for (Dim i = begin; i < end; ++i) {
        const T part = capped[i] * inverse;
        out[i] = in[i] * (T(1) - part * part);
      }
    });
  });
}

void fill(Context& ctx, float value, View y) {
  if (value == 0) {
    auto* bytes = static_cast<unsigned char*>(y.raw());
    parallel_chunks(ctx.threads(), static_cast<Dim>(y.bytes()), 1, [=](int, Dim begin, Dim end) {
      std::memset(bytes + begin, 0, static_cast<std::size_t>(end - begin));
    });
    return;
  }
  with_real(y.dtype(), "fill", [&]<class T>(T) {
    T* out = y.data<T>();
    parallel_chunks(ctx.threads(), y.numel(), 1, [=](int, Dim begin, Dim end) {
      std::fill(out + begin, out + end, static_cast<T>(value));
    });
  });
}

void fill_normal(Context&, const NormalSpec& spec, std::uint64_t first, std::uint64_t pitch,
                 View y) {
  const auto [rows, columns] = y.dims<2>("fill_normal y");
  const bool one_run = pitch == static_cast<std::uint64_t>(columns);
  const Dim runs = one_run ? std::min<Dim>(rows, 1) : rows;
  const Dim length = one_run ? rows * columns : columns;
  with_real(y.dtype(), "fill_normal", [&]<class T>(T) {
    // NOLINTNEXTLINE(misc-const-correctness): written for double
    std::vector<float> wide(std::is_same_v<T, float> ? 0 : static_cast<std::size_t>(length));
    for (Dim run = 0; run < runs; ++run) {
      T* out = y.data<T>() + run * length;
      const std::uint64_t begin = first + static_cast<std::uint64_t>(run) * pitch;
      const auto fill = [&](float* to) {
        hyperslab::fill_normal(to, begin, static_cast<std::uint64_t>(length), spec.seed,
                               spec.stream, spec.std_deviation);
      };
      if constexpr (std::is_same_v<T, float>) {
        fill(out);
      } else {
        fill(wide.data());
        std::ranges::copy(wide, out);
      }
    }
  });
}

void cast(Context& ctx, CView x, View y) {
  with_floating(x.dtype(), "cast", [&]<class From>(From) {
    with_floating(y.dtype(), "cast", [&]<class To>(To) {
      const From* in = x.data<From>();
      To* out = y.data<To>();
      parallel_chunks(ctx.threads(), x.numel(), 1, [=](int, Dim begin, Dim end) {
        if constexpr (std::is_same_v<From, To>) {
          std::memmove(out + begin, in + begin, static_cast<std::size_t>(end - begin) * sizeof(To));
        } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bf16>) {
          round_to_bf16(in + begin, end - begin, out + begin);
        } else if constexpr (std::is_same_v<From, bf16> && std::is_same_v<To, float>) {
          cpu::widen(in + begin, end - begin, out + begin);
        } else {
          for (Dim i = begin; i < end; ++i) out[i] = convert<To>(in[i]);
        }
      });
    });
  });
}

void root_mean_square(Context& ctx, CView x, View out) {
  const SquareSum sum = sum_of_squares(ctx, "root_mean_square", x);
  const auto count = static_cast<double>(std::max<Dim>(x.numel(), 1));
  out.data<float>()[0] = static_cast<float>(std::sqrt(sum.squares / count));
}

}  // namespace hyperslab::ops::cpu
