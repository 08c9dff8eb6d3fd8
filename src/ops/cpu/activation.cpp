// SPDX-License-Identifier: Apache-2.0
#include "../backend.hpp"
#include "../checks.hpp"
#include "activation_functions.hpp"
#include "amax.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

template <class Function, class T>
void forward(int threads, Dim count, const T* x, T* y) {
  parallel_chunks(threads, count, 8, [=](int, Dim begin, Dim end) {
#pragma omp simd
    for (Dim i = begin; i < end; ++i) y[i] = Function::at(x[i]).value;
  });
}

template <class Function, class T>
void backward(int threads, Dim count, const T* x, const T* dy, T* dx) {
  parallel_chunks(threads, count, 8, [=](int, Dim begin, Dim end) {
#pragma omp simd
    for (Dim i = begin; i < end; ++i) dx[i] = dy[i] * Function::at(x[i]).slope;
  });
}

template <class Function, class T>
void gated(int threads, Dim rows, Dim F, const T* gate_up, T* y) {
  parallel_chunks(threads, rows, 8 * F, [=](int, Dim begin, Dim end) {
    for (Dim row = begin; row < end; ++row) {
      const T* gate = gate_up + row * 2 * F;
      const T* up = gate + F;
      T* out = y + row * F;
#pragma omp simd
      for (Dim i = 0; i < F; ++i) out[i] = Function::at(gate[i]).value * up[i];
    }
  });
}

template <class Function, class T>
void gated_gradient(int threads, Dim rows, Dim F, const T* gate_up, const T* dy, T* dgate_up) {
  parallel_chunks(threads, rows, 8 * F, [=](int, Dim begin, Dim end) {
    for (Dim row = begin; row < end; ++row) {
      const T* gate = gate_up + row * 2 * F;
      const T* up = gate + F;
      const T* gradient = dy + row * F;
      T* dgate = dgate_up + row * 2 * F;
      T* dup = dgate + F;
#pragma omp simd
      for (Dim i = 0; i < F; ++i) {
        const auto [value, slope] = Function::at(gate[i]);
        const T through_gate = gradient[i] * up[i] * slope;
        dup[i] = gradient[i] * value;
        dgate[i] = through_gate;
      }
    }
  });
}

void gated_values(Context& ctx, Activation activation, CView gate_up, View y) {
  with_real(y.dtype(), "gated_forward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      gated<Function>(ctx.threads(), leading(y.shape()), y.shape().back(), gate_up.data<T>(),
                      y.data<T>());
    });
  });
}

void gated_gradients(Context& ctx, Activation activation, CView gate_up, CView dy, View dgate_up) {
  with_real(dy.dtype(), "gated_backward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      gated_gradient<Function>(ctx.threads(), leading(dy.shape()), dy.shape().back(),
                               gate_up.data<T>(), dy.data<T>(), dgate_up.data<T>());
    });
  });
}

/// Finds the amax of stored values, after they were rounded.
void find_amax(Context& ctx, CView written, View amax) {
  if (amax) *amax.data<float>() = amax_of(ctx.threads(), written);
}

}  // namespace

void activation_forward(Context& ctx, Activation activation, CView x, View y) {
  with_real(x.dtype(), "activation_forward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      forward<Function>(ctx.threads(), x.numel(), x.data<T>(), y.data<T>());
    });
  });
}

void activation_backward(Context& ctx, Activation activation, CView x, CView dy, View dx) {
  with_real(x.dtype(), "activation_backward", [&]<class T>(T) {
    with_activation(activation, [&]<class Function>(Function) {
      backward<Function>(ctx.threads(), x.numel(), x.data<T>(), dy.data<T>(), dx.data<T>());
    });
  });
}

void gated_forward(Context& ctx, Activation activation, CView gate_up, View y, View amax) {
  call<gated_values>(ctx, activation, gate_up, y);
  find_amax(ctx, y, amax);
}

void gated_backward(Context& ctx, Activation activation, CView gate_up, CView dy, View dgate_up,
                    View amax) {
  call<gated_gradients>(ctx, activation, gate_up, dy, dgate_up);
  find_amax(ctx, dgate_up, amax);
}

}  // namespace hyperslab::ops::cpu
