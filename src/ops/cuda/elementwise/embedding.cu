// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kLongRun = 64;        // occurrences of a token from which on a whole block sums them
constexpr int kRunStep = 32;        // half of it: every long run holds a multiple
constexpr int kEntriesInBlock = 8;  // one warp each

/// A token of another shard gives zero, one outside the vocabulary not-a-number, which
/// finalize_step finds.
template <class T>
struct Lookup {
  static constexpr int kWidth = kVector<T>;
  const std::int32_t* tokens;
  const T* table;
  const T* positions;
  VocabularyShard shard;
  Dim C;
  Dim tokens_in_sample;
  LivePosition first_position;
  const std::int32_t* first_keys;
  float scale;
  T* y;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim index = i / C;
    const Dim column = i - index * C;
    const Dim token = tokens[index];
    const Dim row = token - shard.first;
    const bool known = token >= 0 && token < shard.vocabulary;
    float value[N];
    if (known && row >= 0 && row < shard.count) {
      load<N>(table + row * C + column, value);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] *= scale;
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] = known ? 0.0F : nanf("");
    }
    if (positions != nullptr) {
      float at_position[N];
      Dim position = first_position.of(index / tokens_in_sample) + index % tokens_in_sample;
      if (first_keys != nullptr) position -= first_keys[index];
      load<N>(positions + position * C + column, at_position);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += at_position[k];
    }
    store<N>(y + i, value);
  }
};

template <class T>
struct TableGradient {
  const std::int32_t* tokens;
  const std::int32_t* sort_index;
  const T* dy;
  ParamGradient dtable;
  Dim entries;
  VocabularyShard shard;
  Dim C;
  float scale;
  bool accumulate;

  [[nodiscard]] __device__ std::int32_t token(Dim i) const { return tokens[sort_index[i]]; }
  [[nodiscard]] __device__ bool is_here(std::int32_t id) const {
    return id >= shard.first && id < shard.first + shard.count;
  }
  [[nodiscard]] __device__ bool is_long(Dim start, std::int32_t id) const {
    return start + kLongRun <= entries && token(start + kLongRun - 1) == id;
  }
  /// One after the last entry of the run that holds entry i.
  [[nodiscard]] __device__ Dim end_of(Dim i, std::int32_t id) const {
    Dim inside = i;
    Dim step = 1;
    while (inside + step < entries && token(inside + step) == id) {
      inside += step;
      step *= 2;
    }
    Dim outside = inside + step < entries ? inside + step : entries;
    while (outside - inside > 1) {
      const Dim middle = (inside + outside) / 2;
      (token(middle) == id ? inside : outside) = middle;
    }
    return outside;
  }
  /// sum += dy of the entries begin, begin + stride, ... in [begin, end).
  template <int N>
  __device__ void sum_entries(Dim begin, Dim end, Dim stride, Dim column, float (&sum)[N]) const {
#pragma unroll 4
    for (Dim i = begin; i < end; i += stride) {
      float value[N];
      load<N>(dy + sort_index[i] * C + column, value);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += scale * value[k];
    }
  }
  template <int N>
  __device__ void write(std::int32_t id, Dim column, float (&sum)[N]) const {
    dtable.put<N>((id - shard.first) * C + column, accumulate, sum);
  }
};

/// A warp for every entry that begins a run which is not long.
template <int N, class T>
__global__ void __launch_bounds__(32 * kEntriesInBlock) short_runs_kernel(TableGradient<T> g) {
  overlap();
  wait_for_earlier();
  const Dim start = static_cast<Dim>(blockIdx.x) * kEntriesInBlock + threadIdx.y;
  if (start >= g.entries) return;
  const std::int32_t id = g.token(start);
  if (!g.is_here(id) || (start > 0 && g.token(start - 1) == id)) return;
  if (g.is_long(start, id)) return;
  const Dim end = g.end_of(start, id);
  for (Dim column = threadIdx.x * N; column < g.C; column += 32 * N) {
    float sum[N] = {};
    g.template sum_entries<N>(start, end, 1, column, sum);
    g.template write<N>(id, column, sum);
  }
}

/// A block for 32 * N columns of every long run; it is found by the first multiple of kRunStep in
/// it.
template <int N, class T>
__global__ void __launch_bounds__(32 * kEntriesInBlock) long_runs_kernel(TableGradient<T> g) {
  __shared__ float sums[kEntriesInBlock][N][32];
  overlap();
  wait_for_earlier();
  const Dim mark = static_cast<Dim>(blockIdx.x) * kRunStep;
  const std::int32_t id = g.token(mark);
  if (!g.is_here(id) || (mark > 0 && g.token(mark - kRunStep) == id)) return;
  Dim start = mark;
  while (start > 0 && g.token(start - 1) == id) --start;
  if (!g.is_long(start, id)) return;
  const Dim end = g.end_of(start, id);
  const Dim column = (static_cast<Dim>(blockIdx.y) * 32 + threadIdx.x) * N;
  float sum[N] = {};
  if (column < g.C) {
    g.template sum_entries<N>(start + threadIdx.y, end, kEntriesInBlock, column, sum);
  }
#pragma unroll
  for (int k = 0; k < N; ++k) sums[threadIdx.y][k][threadIdx.x] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0 || column >= g.C) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    for (int row = 1; row < kEntriesInBlock; ++row) sum[k] += sums[row][k][threadIdx.x];
  }
  g.template write<N>(id, column, sum);
}

template <int N, class T>
void launch_table_gradient(Context& ctx, const TableGradient<T>& gradient) {
  const dim3 threads(32, kEntriesInBlock);
  const auto blocks = static_cast<unsigned>(ceil_divide(gradient.entries, kEntriesInBlock));
  launch_waiting(ctx, "embedding_backward", gradient.entries, short_runs_kernel<N, T>,
                 {blocks, threads}, gradient);
  const dim3 marks(static_cast<unsigned>(ceil_divide(gradient.entries, kRunStep)),
                   static_cast<unsigned>(ceil_divide(gradient.C, 32 * N)));
  launch_waiting(ctx, "embedding_backward", gradient.entries, long_runs_kernel<N, T>,
                 {marks, threads}, gradient);
}

/// Element i of dpositions, summed over the samples in ascending order and over the documents of
/// each in descending order.
template <class T>
struct PositionGradient {
  static constexpr int kWidth = kVector<T>;
  const T* dy;
  ParamGradient dpositions;
  const std::int32_t* first_keys;
  Dim first;  // token of a sample
  Dim B;
  Dim tokens;  // that follow each other in a sample
  Dim C;
  bool accumulate;
  template <int N>
  __device__ void at(Dim i) const {
    float sum[N] = {};
    if (accumulate) dpositions.load<N>(i, sum);
    const auto add = [&](Dim b, Dim in_sample) {
      float value[N];
      load<N>(dy + b * tokens * C + in_sample, value);
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += value[k];
    };
    const Dim position = i / C;
    if (first_keys == nullptr) {
      const bool is_here = position >= first && position < first + tokens;
#pragma unroll 4
      for (Dim b = 0; b < (is_here ? B : 0); ++b) add(b, i - first * C);
    } else {
      for (Dim b = 0; b < B; ++b) {
        for (Dim end = first + tokens; end > first;) {
          const Dim start = first_keys[b * tokens + end - first - 1];
          const Dim token = start + position;
          if (token >= first && token < end) add(b, (start - first) * C + i);
          end = start;
        }
      }
    }
    dpositions.store<N>(i, sum);
  }
};

template <class T>
struct Sinusoid {
  static constexpr int kWidth = 1;
  Dim C;
  T* table;
  template <int N>
  __device__ void at(Dim i) const {
    const Dim t = i / C;
    const Dim c = i - t * C;
    const double angle = static_cast<double>(t) *
                         pow(10000.0, -static_cast<double>(c - c % 2) / static_cast<double>(C));
    table[i] = from_real<T>(static_cast<float>(c % 2 == 0 ? sin(angle) : cos(angle)));
  }
};

}  // namespace

void embedding_forward(Context& ctx, CView tokens, const EmbeddingTables& tables, float scale,
                       View y) {
  with_element(tables.table.dtype(), "embedding_forward", [&]<class T>(T) {
    const Lookup<T> op = {tokens.data<std::int32_t>(),
                          tables.table.data<T>(),
                          optional_data<T>(tables.positions),
                          tables.shard,
                          tables.table.shape()[1],
                          tokens.shape()[1],
                          live_position(tables.first_position),
                          optional_data<std::int32_t>(tables.first_keys),
                          scale,
                          y.data<T>()};
    const bool vectors = op.C % kVector<T> == 0 && aligned(op.table, op.positions, op.y);
    for_each(ctx, "embedding_forward", y, vectors, op);
  });
}

void embedding_backward(Context& ctx, const SortedTokens& sorted, CView dy,
                        const VocabularyShard& shard, float scale, Accumulate accumulate,
                        View dtable) {
  if (accumulate == Accumulate::no) fill(ctx, 0, dtable);
  with_element(dy.dtype(), "embedding_backward", [&]<class T>(T) {
    constexpr int N = kVector<T>;
    const TableGradient<T> gradient = {sorted.tokens.data<std::int32_t>(),
                                       sorted.sort_index.data<std::int32_t>(),
                                       dy.data<T>(),
                                       dtable,
                                       sorted.tokens.numel(),
                                       shard,
                                       dtable.shape()[1],
                                       scale,
                                       accumulate == Accumulate::yes};
    if (dy.numel() == 0 || shard.count == 0) return;
    if (gradient.C % N == 0 && aligned(gradient.dy, gradient.dtable.data)) {
      launch_table_gradient<N>(ctx, gradient);
    } else {
      launch_table_gradient<1>(ctx, gradient);
    }
  });
}

void position_backward(Context& ctx, CView dy, Dim first_token, CView first_keys,
                       Accumulate accumulate, View dpositions) {
  with_element(dy.dtype(), "position_backward", [&]<class T>(T) {
    const auto [B, tokens, C] = dy.dims<3>("position_backward dy");
    const PositionGradient<T> op = {dy.data<T>(),
                                    dpositions,
                                    optional_data<std::int32_t>(first_keys),
                                    first_token,
                                    B,
                                    tokens,
                                    C,
                                    accumulate == Accumulate::yes};
    const bool vectors = C % kVector<T> == 0 && aligned(op.dy, op.dpositions.data);
    for_each(ctx, "position_backward", B * tokens, dpositions.numel(), vectors, op);
  });
}

void sinusoidal_table(Context& ctx, View table) {
  with_element(table.dtype(), "sinusoidal_table", [&]<class T>(T) {
    const Sinusoid<T> op = {table.shape()[1], table.data<T>()};
    for_each(ctx, "sinusoidal_table", table, false, op);
  });
}

}  // namespace hyperslab::ops::cuda
