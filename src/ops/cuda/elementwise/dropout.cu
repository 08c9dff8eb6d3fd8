// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/dropout.cuh"
#include "dropout_checks.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// The part of every sample that is here.
struct SamplePart {
  int part;
  int parts;
  [[nodiscard]] __device__ Dim before(Dim position) const { return position * parts + part; }
};
SamplePart part_of(const Dropout& dropout) { return {dropout.sample_part, dropout.sample_parts}; }

template <class T>
struct Drop {
  static constexpr int kWidth = kVector<T>;
  DropoutMask mask;
  SamplePart part;
  Dim per_sample;
  Dim first_element;
  const T* x;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim element = first_element + i;
    const Dim sample = element / per_sample;
    const auto global = static_cast<std::uint64_t>(
        part.before(mask.sample_position[sample]) * per_sample + element - sample * per_sample);
    float factor[N];
    mask.factors(global, true, factor);
    float value[N];
    load<N>(x + i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = factor[k] == 0 ? 0.0F : value[k] * factor[k];
    store<N>(y + i, value);
  }
};

/// Drops elements in a part of the columns.
template <class T>
struct DropColumns {
  static constexpr int kWidth = kVector<T>;
  DropoutMask mask;
  SamplePart part;
  MaskColumns columns;
  Dim rows_of_sample;
  Dim first_row;
  bool together;
  const T* x;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim own_row = i / columns.here;
    const Dim column = columns.first + i - own_row * columns.here;
    const Dim row = first_row + own_row;
    const Dim sample = row / rows_of_sample;
    const Dim global_row =
        part.before(mask.sample_position[sample]) * rows_of_sample + row - sample * rows_of_sample;
    float factor[N];
    mask.factors(static_cast<std::uint64_t>(global_row * columns.total + column), together, factor);
    float value[N];
    load<N>(x + i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = factor[k] == 0 ? 0.0F : value[k] * factor[k];
    store<N>(y + i, value);
  }
};

template <class T>
void drop_columns(Context& ctx, const Dropout& dropout, CView x, View y) {
  const MaskColumns columns = mask_columns(dropout, x);
  DropColumns<T> op = {mask_of(dropout),
                       part_of(dropout),
                       columns,
                       sample_elements(dropout, x) / columns.here,
                       dropout.first_element / columns.here,
                       columns.first % 4 == 0 && columns.total % 4 == 0,
                       x.data<T>(),
                       y.data<T>()};
  // Vectors stay within a row.
  const bool vectors = columns.here % kVector<T> == 0 && aligned(op.x, op.y);
  for_each(ctx, "dropout", x, vectors, op);
}

template <class T>
struct DropPath {
  static constexpr int kWidth = kVector<T>;
  DropoutMask mask;
  Dim per_sample;
  Dim first_element;
  const T* x;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim sample = (first_element + i) / per_sample;
    float factor[1];
    mask.factors(static_cast<std::uint64_t>(mask.sample_position[sample]), false, factor);
    float value[N];
    load<N>(x + i, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = factor[0] == 0 ? 0.0F : value[k] * factor[0];
    store<N>(y + i, value);
  }
};

}  // namespace

void drop_path(Context& ctx, const Dropout& dropout, CView x, View y) {
  if (!dropout.active()) return cast(ctx, x, y);
  if (x.numel() == 0) return;
  with_element(x.dtype(), "drop_path", [&]<class T>(T) {
    DropPath<T> op = {mask_of(dropout), sample_elements(dropout, x), dropout.first_element,
                      x.data<T>(), y.data<T>()};
    op.mask.key = dropout.seed ^ name_hash("drop path");
    const bool vectors = op.per_sample % kVector<T> == 0 && op.first_element % kVector<T> == 0 &&
                         aligned(op.x, op.y);
    for_each(ctx, "drop_path", x, vectors, op);
  });
}

void dropout(Context& ctx, const Dropout& dropout, CView x, View y) {
  if (!dropout.active()) return cast(ctx, x, y);
  if (x.numel() == 0) return;
  with_element(x.dtype(), "dropout", [&]<class T>(T) {
    if (!mask_columns(dropout, x).are_all()) return drop_columns<T>(ctx, dropout, x, y);
    const Drop<T> op = {mask_of(dropout),      part_of(dropout), sample_elements(dropout, x),
                        dropout.first_element, x.data<T>(),      y.data<T>()};
    // Vectors stay within a sample and begin at multiples of 4.
    const bool vectors = op.per_sample % kVector<T> == 0 && op.first_element % kVector<T> == 0 &&
                         aligned(op.x, op.y);
    for_each(ctx, "dropout", x, vectors, op);
  });
}

}  // namespace hyperslab::ops::cuda
