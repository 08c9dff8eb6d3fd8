// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/nn/sublayer.hpp"
#include "hyperslab/nn/vocabulary.hpp"
#include "hyperslab/ops/embedding.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::nn {

/// The table of positions that is added to the token embedding.
enum class PositionTable : std::uint8_t { none, learned, fixed };

/// The loss of a head in training.
struct HeadLoss {
  TokenColumns columns;  ///< last dimension of Batch::token_values
  ops::TokenLoss target;
  bool of_pairs = false;  ///< ops::preference_loss in place of target's, with its reference
  float beta = 0.1F;      ///< factor of a pair's margin
};

struct EmbeddingConfig {
  Dim vocabulary = 0;
  Dim width = 0;
  Dim context = 0;
  PositionTable positions = PositionTable::none;
  float scale = 1;          ///< factor of the token embedding, see model.embedding_scale
  float logit_scale = 1;    ///< factor of the head's products, before a softcap
  float logit_softcap = 0;  ///< cap of the head's logits; 0: none
  float z_loss = 0;         ///< weight in the head's loss, see ops::LossRows; 0: none
  HeadLoss loss;
  float dropout = 0;
  std::uint64_t seed = 0;
  float init_std = 0.02F;
  bool tied = false;  ///< the head computes with the same table
  TensorGroup group;
  ContextGroup context_group;
  VocabularySplit vocabulary_split;
};

/// The table of token vectors as a head or an embedding declares it.
[[nodiscard]] param::ParamSpec token_table(const EmbeddingConfig& config);

/// Token ids to vectors, plus positions, plus dropout. The vocabulary is split over the tensor
/// group; every rank holds all positions.
class Embedding {
 public:
  Embedding(param::ParamStore& params, const EmbeddingConfig& config);

  /// The fixed table (T_max, C) is given by the owner of the constants; absent otherwise.
  void set_fixed_positions(CView table) { fixed_positions_ = table; }
  /// tokens: (B, T) i32 -> y: the stream.
  void forward(Context& ctx, CView tokens, const ops::TokenPosition& first_position,
               const BatchInfo& batch, const Scratch& scratch, View y) const;
  /// dy: the stream's gradient, overwritten by its masked self if dropout acts. sort_index:
  /// see ops::embedding_backward. `table_accumulate` differs from the pass's if the head has
  /// already written to a tied table.
  void backward(Context& ctx, CView tokens, CView sort_index, const BackwardPass& pass, View dy,
                Accumulate table_accumulate) const;
  [[nodiscard]] const param::FusedParam& table() const { return table_; }

 private:
  [[nodiscard]] ops::Dropout dropout(const BatchInfo& batch, CView x) const;
  EmbeddingConfig config_;
  param::FusedParam table_;
  param::FusedParam positions_;
  CView fixed_positions_;
};

}  // namespace hyperslab::nn
