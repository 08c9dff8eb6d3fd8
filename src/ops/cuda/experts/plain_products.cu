// SPDX-License-Identifier: Apache-2.0
// Products of experts' rows of any size and dtype: tiles in shared memory, sums in f32.
#include "checks.hpp"
#include "cuda/tools/common.cuh"
#include "product_table.hpp"
#include "tiles.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kPlainTile = 64;  // rows and columns of a product
constexpr int kPlainDepth = 16;
constexpr int kSide = 16;  // threads along either side, each with kEach x kEach sums
constexpr int kEach = kPlainTile / kSide;
constexpr int kPlainThreads = kSide * kSide;

/// Terms of both factors, those of a row or column of the product in a column here.
struct PlainTiles {
  float left[kPlainDepth][kPlainTile + 1];
  float right[kPlainDepth][kPlainTile + 1];
};

/// The element of a loader: `along` is the index within the terms, `across` the row or column.
struct PlainElement {
  int along;
  int across;
  /// Neighboring threads take neighboring elements of memory, which are terms or not.
  __device__ PlainElement(int i, bool terms_are_neighbors)
      : along(terms_are_neighbors ? i % kPlainDepth : i / kPlainTile),
        across(terms_are_neighbors ? i / kPlainDepth : i % kPlainTile) {}
};

/// sums += left right^T. left(across, along) and right(across, along) give an element or zero;
/// their kTermsAreNeighbors says how they lie.
template <class LeftOf, class RightOf>
__device__ void add_terms(PlainTiles& tiles, int depth, const LeftOf& left, const RightOf& right,
                          float (&sums)[kEach][kEach]) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int first = 0; first < depth; first += kPlainDepth) {
    __syncthreads();
    for (int i = thread; i < kPlainTile * kPlainDepth; i += kPlainThreads) {
      const PlainElement of_left(i, LeftOf::kTermsAreNeighbors);
      const PlainElement of_right(i, RightOf::kTermsAreNeighbors);
      tiles.left[of_left.along][of_left.across] = left(of_left.across, first + of_left.along);
      tiles.right[of_right.along][of_right.across] = right(of_right.across, first + of_right.along);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPlainDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float a = tiles.left[k][thread / kSide + kSide * i];
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] = fmaf(a, tiles.right[k][thread % kSide + kSide * j], sums[i][j]);
        }
      }
    }
  }
}

/// Calls store(row, column, sum) for the sums of a thread within rows x columns of the tile.
template <class Store>
__device__ void store_terms(int rows, int columns, const float (&sums)[kEach][kEach],
                            const Store& store) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int row = thread / kSide + kSide * i;
      const int column = thread % kSide + kSide * j;
      if (row < rows && column < columns) store(row, column, sums[i][j]);
    }
  }
}

/// A part of a matrix in memory: `kTerms` says that terms of a sum are neighbors there.
template <class T, bool kTerms>
struct Part {
  static constexpr bool kTermsAreNeighbors = kTerms;
  const T* first;
  Dim stride;  ///< between what are no neighbors
  int across;  ///< rows or columns that are there
  int along;   ///< terms
  __device__ float operator()(int at, int term) const {
    if (at >= across || term >= along) return 0;
    return to_real(first[kTerms ? at * stride + term : term * stride + at]);
  }
};

template <class T>
struct PlainRowsCall {
  const T* x;
  const T* weights;
  const std::int32_t* first_rows;
  T* y;
  int experts;
  int rows;
  int depth;
  int columns;
};

/// Block (tile of rows, tile of columns). kForward: a matrix's rows are columns of the product.
template <bool kForward, class T>
__global__ void __launch_bounds__(kPlainThreads) plain_expert_rows_kernel(PlainRowsCall<T> call) {
  __shared__ PlainTiles tiles;
  overlap();
  wait_for_earlier();
  if (call.first_rows[call.experts] > call.rows) __trap();
  const ExpertTile tile =
      find_row_tile(call.first_rows, call.experts, kPlainTile, static_cast<int>(blockIdx.x));
  if (tile.rows == 0) return;
  const int column = static_cast<int>(blockIdx.y) * kPlainTile;
  const int columns = min(kPlainTile, call.columns - column);
  const T* matrix = call.weights + static_cast<Dim>(tile.expert) * call.columns * call.depth +
                    (kForward ? static_cast<Dim>(column) * call.depth : static_cast<Dim>(column));
  const Part<T, true> left = {call.x + static_cast<Dim>(tile.first_row) * call.depth, call.depth,
                              tile.rows, call.depth};
  const Part<T, kForward> right = {matrix, kForward ? call.depth : call.columns, columns,
                                   call.depth};
  float sums[kEach][kEach] = {};
  add_terms(tiles, call.depth, left, right, sums);
  T* const y = call.y + static_cast<Dim>(tile.first_row) * call.columns + column;
  store_terms(tile.rows, columns, sums, [&](int row, int at, float sum) {
    y[static_cast<Dim>(row) * call.columns + at] = from_real<T>(sum);
  });
}

template <class T>
struct PlainWeightsCall {
  const T* dy;
  const T* x;
  const std::int32_t* first_rows;
  ParamGradient dweights;
  bool accumulate;
  int rows;
  int outputs;
  int inputs;
};

/// Block (tile of inputs, tile of outputs, expert).
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    plain_expert_weights_kernel(PlainWeightsCall<T> call) {
  __shared__ PlainTiles tiles;
  overlap();
  wait_for_earlier();
  const int first = call.first_rows[blockIdx.z];
  const int rows = call.first_rows[blockIdx.z + 1] - first;
  if (rows < 0 || first + rows > call.rows) __trap();
  const int input = static_cast<int>(blockIdx.x) * kPlainTile;
  const int output = static_cast<int>(blockIdx.y) * kPlainTile;
  const int inputs = min(kPlainTile, call.inputs - input);
  const int outputs = min(kPlainTile, call.outputs - output);
  const Part<T, false> left = {call.dy + static_cast<Dim>(first) * call.outputs + output,
                               call.outputs, outputs, rows};
  const Part<T, false> right = {call.x + static_cast<Dim>(first) * call.inputs + input, call.inputs,
                                inputs, rows};
  float sums[kEach][kEach] = {};
  add_terms(tiles, rows, left, right, sums);
  const Dim base = (static_cast<Dim>(blockIdx.z) * call.outputs + output) * call.inputs + input;
  store_terms(outputs, inputs, sums, [&](int row, int column, float sum) {
    call.dweights.put(base + static_cast<Dim>(row) * call.inputs + column, call.accumulate, {sum});
  });
}

/// y[r] = the product of x[r] and its expert's matrix, or the matrix's transpose.
template <bool kForward>
void multiply_plainly(Context& ctx, const char* op, CView x, CView weights, CView first_rows,
                      View y) {
  const Dim rows = leading(x.shape());
  const Dim columns = y.shape().back();
  if (rows == 0 || columns == 0) return;
  with_element(x.dtype(), op, [&]<class T>(T) {
    const Dim experts = first_rows.numel() - 1;
    const PlainRowsCall<T> call = {.x = x.data<T>(),
                                   .weights = weights.data<T>(),
                                   .first_rows = first_rows.data<std::int32_t>(),
                                   .y = y.data<T>(),
                                   .experts = static_cast<int>(experts),
                                   .rows = static_cast<int>(rows),
                                   .depth = static_cast<int>(x.shape().back()),
                                   .columns = static_cast<int>(columns)};
    const Dim row_tiles = ceil_divide(rows, kPlainTile) + std::min(rows, experts);
    const dim3 blocks = {static_cast<unsigned>(row_tiles),
                         static_cast<unsigned>(ceil_divide(columns, kPlainTile))};
    launch_waiting(ctx, op, rows, plain_expert_rows_kernel<kForward, T>, {blocks, kPlainThreads},
                   call);
  });
}

}  // namespace

void plain_experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows,
                           View y) {
  multiply_plainly<true>(ctx, "experts_forward", x.values, weights, first_rows, y);
}

void plain_experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights,
                                  CView first_rows, View dx) {
  multiply_plainly<false>(ctx, "experts_backward_input", dy.values, weights, first_rows, dx);
}

void plain_experts_backward_weight(Context& ctx, const GatheredRows& dy_rows,
                                   const GatheredRows& x_rows, CView first_rows,
                                   Accumulate accumulate, View dweights) {
  constexpr const char* kName = "experts_backward_weight";
  const CView dy = dy_rows.values;
  const CView x = x_rows.values;
  if (dweights.numel() == 0) return;
  with_element(x.dtype(), kName, [&]<class T>(T) {
    const Dim outputs = dy.shape().back();
    const Dim inputs = x.shape().back();
    const PlainWeightsCall<T> call = {.dy = dy.data<T>(),
                                      .x = x.data<T>(),
                                      .first_rows = first_rows.data<std::int32_t>(),
                                      .dweights = dweights,
                                      .accumulate = accumulate == Accumulate::yes,
                                      .rows = static_cast<int>(leading(x.shape())),
                                      .outputs = static_cast<int>(outputs),
                                      .inputs = static_cast<int>(inputs)};
    const dim3 blocks = {static_cast<unsigned>(ceil_divide(inputs, kPlainTile)),
                         static_cast<unsigned>(ceil_divide(outputs, kPlainTile)),
                         static_cast<unsigned>(first_rows.numel() - 1)};
    launch_waiting(ctx, kName, call.rows, plain_expert_weights_kernel<T>, {blocks, kPlainThreads},
                   call);
  });
}

}  // namespace hyperslab::ops::cuda
