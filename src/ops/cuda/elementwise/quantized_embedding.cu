// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/quantized.cuh"
#include "hyperslab/ops/embedding.hpp"

namespace hyperslab::ops::cuda {
namespace {

/// A token of another shard gives zero, one outside the vocabulary not-a-number, which
/// finalize_step finds.
template <class T, WeightFormat kFormat>
struct QuantizedLookup {
  static constexpr int kWidth = kVector<T>;
  const std::int32_t* tokens;
  QuantizedElements<kFormat> table;
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
      const Dim element = row * C + column;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float row_scale = table.scale_of((element + k) / table.group);
        value[k] = __fmul_rn(table.code_at(element + k, table.table.values), row_scale) * scale;
      }
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

}  // namespace

void quantized_embedding_forward(Context& ctx, CView tokens, const CQuantizedMatrix& table,
                                 const EmbeddingTables& tables, float scale, View y) {
  with_element(y.dtype(), "quantized_embedding_forward", [&]<class T>(T) {
    with_format(table.format, [&]<WeightFormat kFormat>() {
      const QuantizedLookup<T, kFormat> op = {tokens.data<std::int32_t>(),
                                              elements_of<kFormat>(table),
                                              optional_data<T>(tables.positions),
                                              tables.shard,
                                              table.shape[1],
                                              tokens.shape()[1],
                                              live_position(tables.first_position),
                                              optional_data<std::int32_t>(tables.first_keys),
                                              scale,
                                              y.data<T>()};
      const bool vectors = op.C % kVector<T> == 0 && aligned(op.positions, op.y);
      for_each(ctx, "quantized_embedding_forward", y, vectors, op);
    });
  });
}

}  // namespace hyperslab::ops::cuda
