// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

/// Pair i of all: column i % half of rotated head i / half.
template <class T>
struct Rotate {
  static constexpr int kWidth = kVector<T>;
  Dim half;
  Dim rotated;  // heads and kv_heads
  Dim head_width;
  Dim tokens;
  Dim packed;
  LivePosition first_position;
  float sign;
  const float* cosines;
  const float* sines;
  T* qkv;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim head_of_all = i / half;
    const Dim column = i - head_of_all * half;
    const Dim row = head_of_all / rotated;
    const Dim head = head_of_all - row * rotated;
    const Dim angle = (first_position.of(row / tokens) + row % tokens) * half + column;
    T* low = qkv + row * packed + head * head_width + column;
    float a[N];
    float b[N];
    float cosine[N];
    float sine[N];
    load<N>(low, a);
    load<N>(low + half, b);
    load<N>(cosines + angle, cosine);
    load<N>(sines + angle, sine);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float before = a[k];
      a[k] = before * cosine[k] - b[k] * (sign * sine[k]);
      b[k] = b[k] * cosine[k] + before * (sign * sine[k]);
    }
    store<N>(low, a);
    store<N>(low + half, b);
  }
};

}  // namespace

void rope(Context& ctx, const HeadLayout& layout, CView cosines, CView sines,
          const TokenPosition& first_position, Rotation rotation, View qkv) {
  with_element(qkv.dtype(), "rope", [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const auto [B, tokens, packed] = qkv.dims<3>("rope qkv");
    const Dim half = cosines.shape()[1];
    const Rotate<T> op = {half,
                          layout.heads + layout.kv_heads,
                          layout.head_width,
                          tokens,
                          packed,
                          live_position(first_position),
                          rotation == Rotation::forward ? 1.0F : -1.0F,
                          cosines.data<float>(),
                          sines.data<float>(),
                          qkv.data<T>()};
    const bool vectors =
        half % N == 0 && layout.head_width % N == 0 && aligned(op.qkv, op.cosines, op.sines);
    for_each(ctx, "rope", B * tokens, B * tokens * op.rotated * half, vectors, op);
  });
}

}  // namespace hyperslab::ops::cuda
