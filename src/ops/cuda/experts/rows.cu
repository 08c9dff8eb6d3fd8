// SPDX-License-Identifier: Apache-2.0
// Rows of tokens on their way to experts and back.
#include "checks.hpp"
#include "used_rows.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr unsigned kRowThreads = 256;
constexpr unsigned kMostRowBlocks = 1U << 20;
constexpr int kArrivalThreads = 256;

/// Threads of a block along the vectors of a row, and rows side by side.
Grid grid_of_rows(Dim rows, Dim vectors) {
  unsigned along = 1;
  while (along < kRowThreads && along < vectors) along *= 2;
  const unsigned beside = kRowThreads / along;
  const auto blocks = static_cast<unsigned>(
      std::min<Dim>(kMostRowBlocks, ceil_divide(rows, static_cast<Dim>(beside))));
  return {blocks, {along, beside}};
}

/// Calls body(row, vector) for the vectors of a thread.
template <class Body>
__device__ void each_vector(Dim rows, int vectors, const Body& body) {
  const Dim stride = static_cast<Dim>(gridDim.x) * blockDim.y;
  for (Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y; row < rows;
       row += stride) {
    for (int v = static_cast<int>(threadIdx.x); v < vectors; v += static_cast<int>(blockDim.x)) {
      body(row, v);
    }
  }
}

template <class Word>
struct GatherCall {
  const Word* x;
  const std::int32_t* pairs;
  const std::int32_t* used;  ///< null: all rows
  Word* y;
  Dim rows;
  int words;  ///< a row has them
  int divisor;
};

template <class Word>
__global__ void __launch_bounds__(kRowThreads) gather_rows_kernel(GatherCall<Word> call) {
  overlap();
  wait_for_earlier();
  each_vector(used_rows(call.used, call.rows), call.words, [&](Dim row, int word) {
    const int pair = call.pairs[row];
    const Dim from = pair / call.divisor;
    call.y[row * call.words + word] = pair < 0 ? Word{} : call.x[from * call.words + word];
  });
}

template <class Word>
void gather_words(Context& ctx, CView x, CView pairs, Dim divisor, View y, CView used) {
  const Dim words =
      y.shape().back() * static_cast<Dim>(size_of(x.dtype())) / static_cast<Dim>(sizeof(Word));
  const GatherCall<Word> call = {.x = static_cast<const Word*>(x.raw()),
                                 .pairs = pairs.data<std::int32_t>(),
                                 .used = used ? used.data<std::int32_t>() : nullptr,
                                 .y = static_cast<Word*>(y.raw()),
                                 .rows = pairs.numel(),
                                 .words = static_cast<int>(words),
                                 .divisor = static_cast<int>(divisor)};
  launch_waiting(ctx, "gather_rows", call.rows, gather_rows_kernel<Word>,
                 grid_of_rows(call.rows, words), call);
}

template <class T>
struct SumCall {
  const T* x;
  const std::int32_t* rows;
  const std::int32_t* used;  ///< null: the part has rows
  T* y;
  Dim tokens;
  int C;
  int K;
  int first;
  int count;  ///< rows of the part
  bool accumulate;
};

/// The sums are in f32 and in the order of k.
template <int N, class T>
__global__ void __launch_bounds__(kRowThreads) sum_rows_kernel(SumCall<T> call) {
  overlap();
  wait_for_earlier();
  if (call.accumulate && call.used != nullptr && *call.used == 0) return;
  each_vector(call.tokens, call.C / N, [&](Dim token, int vector) {
    const std::int32_t* const rows = call.rows + token * call.K;
    T* const y = call.y + token * call.C + vector * N;
    float sums[N] = {};
    if (call.accumulate) load<N>(y, sums);
    for (int k = 0; k < call.K; ++k) {
      const int row = rows[k] - call.first;
      if (rows[k] < 0 || row < 0 || row >= call.count) continue;
      float term[N];
      load<N>(call.x + static_cast<Dim>(row) * call.C + vector * N, term);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += term[i];
    }
    store<N>(y, sums);
  });
}

struct CountRows {
  static constexpr int kWidth = 1;
  const std::int32_t* first_rows;
  std::int32_t* counts;
  template <int N>
  __device__ void at(Dim e) const {
    counts[e] = first_rows[e + 1] - first_rows[e];
  }
};

struct CutFirstRows {
  static constexpr int kWidth = 1;
  const std::int32_t* first_rows;
  std::int32_t* parts;
  Dim width;
  Dim count;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim rows = first_rows[i % width] - i / width * count;
    parts[i] = static_cast<std::int32_t>(min(max(rows, Dim{0}), count));
  }
};

struct AddRowsBeyond {
  static constexpr int kWidth = 1;
  const std::int32_t* rows;  ///< all experts'
  float* sum;
  int bound;
  template <int N>
  __device__ void at(Dim /*index*/) const {
    *sum += static_cast<float>(max(*rows - bound, 0));
  }
};

struct ArrivalsCall {
  const std::int32_t* arrived;  ///< (ranks, experts)
  std::int32_t* first_rows;
  std::int32_t* order;
  std::int32_t* inverse;
  int ranks;
  int experts;
  Dim most;  ///< rows that order holds
};

/// Block: the rows of a rank and an expert. More rows than fit end the kernel with an error.
__global__ void __launch_bounds__(kArrivalThreads) order_arrivals_kernel(ArrivalsCall call) {
  __shared__ int scratch[32];
  overlap();
  wait_for_earlier();
  const int rank = static_cast<int>(blockIdx.x) / call.experts;
  const int expert = static_cast<int>(blockIdx.x) % call.experts;
  int all = 0;
  int arrived_before = 0;
  int ordered_before = 0;
  for (int i = static_cast<int>(threadIdx.x); i < call.ranks * call.experts; i += kArrivalThreads) {
    const int count = call.arrived[i];
    const int of_expert = i % call.experts;
    all += count;
    if (i < static_cast<int>(blockIdx.x)) arrived_before += count;
    if (of_expert < expert || (of_expert == expert && i / call.experts < rank)) {
      ordered_before += count;
    }
  }
  all = block_sum(all, scratch);
  arrived_before = block_sum(arrived_before, scratch);
  ordered_before = block_sum(ordered_before, scratch);
  if (all > call.most) __trap();
  const int count = call.arrived[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kArrivalThreads) {
    call.order[ordered_before + i] = arrived_before + i;
    call.inverse[arrived_before + i] = ordered_before + i;
  }
  if (threadIdx.x != 0 || rank != 0) return;
  call.first_rows[expert] = ordered_before;
  if (expert == 0) call.first_rows[call.experts] = all;
}

}  // namespace

void gather_rows(Context& ctx, CView x, CView pairs, Dim divisor, View y, CView used) {
  if (y.numel() == 0) return;
  const std::size_t bytes =
      static_cast<std::size_t>(y.shape().back()) * size_of(x.dtype());  // a row has them
  if (bytes % 16 == 0 && aligned(x.raw(), y.raw())) {
    return gather_words<uint4>(ctx, x, pairs, divisor, y, used);
  }
  switch (size_of(x.dtype())) {
    case 2: return gather_words<std::uint16_t>(ctx, x, pairs, divisor, y, used);
    case 4: return gather_words<std::uint32_t>(ctx, x, pairs, divisor, y, used);
    default: throw Error(ExitCode::internal, "gather_rows: elements of neither 2 nor 4 bytes");
  }
}

void sum_rows(Context& ctx, CView x, CView rows, View y, const RowPart& part) {
  constexpr const char* kName = "sum_rows";
  if (y.numel() == 0) return;
  with_element(x.dtype(), kName, [&]<class T>(T) {
    const SumCall<T> call = {.x = x.data<T>(),
                             .rows = rows.data<std::int32_t>(),
                             .used = part.used ? part.used.data<std::int32_t>() : nullptr,
                             .y = y.data<T>(),
                             .tokens = leading(rows.shape()),
                             .C = static_cast<int>(x.shape().back()),
                             .K = static_cast<int>(rows.shape().back()),
                             .first = static_cast<int>(part.first),
                             .count = static_cast<int>(leading(x.shape())),
                             .accumulate = part.accumulate == Accumulate::yes};
    if (call.C % kVector<T> == 0 && aligned(call.x, call.y)) {
      return launch_waiting(ctx, kName, call.tokens, sum_rows_kernel<kVector<T>, T>,
                            grid_of_rows(call.tokens, call.C / kVector<T>), call);
    }
    launch_waiting(ctx, kName, call.tokens, sum_rows_kernel<1, T>,
                   grid_of_rows(call.tokens, call.C), call);
  });
}

void count_rows(Context& ctx, CView first_rows, View counts) {
  const CountRows op = {first_rows.data<std::int32_t>(), counts.data<std::int32_t>()};
  for_each(ctx, "count_rows", kOneBlock, counts.numel(), false, op);
}

void cut_first_rows(Context& ctx, CView first_rows, Dim count, View parts) {
  const CutFirstRows op = {first_rows.data<std::int32_t>(), parts.data<std::int32_t>(),
                           first_rows.numel(), count};
  for_each(ctx, "cut_first_rows", kOneBlock, parts.numel(), false, op);
}

void add_rows_beyond(Context& ctx, CView first_rows, Dim bound, View sums) {
  const AddRowsBeyond op = {first_rows.data<std::int32_t>() + first_rows.numel() - 1,
                            sums.data<float>() + kSumRowsBeyond, static_cast<int>(bound)};
  for_each(ctx, "add_rows_beyond", kOneBlock, 1, false, op);
}

void order_arrivals(Context& ctx, CView arrived, View first_rows, View order, View inverse) {
  const Dim experts = arrived.shape().back();
  const ArrivalsCall call = {.arrived = arrived.data<std::int32_t>(),
                             .first_rows = first_rows.data<std::int32_t>(),
                             .order = order.data<std::int32_t>(),
                             .inverse = inverse.data<std::int32_t>(),
                             .ranks = static_cast<int>(arrived.numel() / experts),
                             .experts = static_cast<int>(experts),
                             .most = order.numel()};
  launch_waiting(ctx, "order_arrivals", order.numel(), order_arrivals_kernel,
                 {static_cast<unsigned>(arrived.numel()), kArrivalThreads}, call);
}

}  // namespace hyperslab::ops::cuda
