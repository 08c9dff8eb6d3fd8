// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/nn/block.hpp"
#include "hyperslab/ops/embedding.hpp"

namespace hyperslab::nn {

/// What positions add to the token embedding.
enum class PositionTable : std::uint8_t { none, learned, fixed };

struct EmbeddingConfig {
  Dim vocabulary = 0;
  Dim width = 0;
  Dim context = 0;
  PositionTable positions = PositionTable::none;
  float scale = 1;  ///< of the token embedding: sqrt(C) with fixed positions (Vaswani et al. 3.4)
  float dropout = 0;
  std::uint64_t seed = 0;
  float init_std = 0.02F;
};

/// Token ids to vectors, plus positions, plus dropout.
class Embedding {
 public:
  Embedding(ParamTable& params, const EmbeddingConfig& config);

  /// The fixed table (T_max, C) is given by the owner of the constants; absent otherwise.
  void set_fixed_positions(CView table) { fixed_positions_ = table; }
  /// tokens: (B, T) i32 -> y: (B, T, C).
  void forward(Context& ctx, CView tokens, Dim first_position, const BatchInfo& batch,
               View y) const;
  /// dy: (B, T, C), overwritten by its masked self where dropout acts. order: see
  /// ops::embedding_backward. `table_accumulate` differs from `accumulate` where the head has
  /// already written to a tied table.
  void backward(Context& ctx, CView tokens, CView order, const BatchInfo& batch, View dy,
                Accumulate table_accumulate, Accumulate accumulate) const;
  [[nodiscard]] const Pack& table() const { return table_; }

 private:
  [[nodiscard]] ops::Dropout dropout(const BatchInfo& batch) const;
  EmbeddingConfig config_;
  Pack table_;
  Pack positions_;
  CView fixed_positions_;
};

}  // namespace hyperslab::nn
