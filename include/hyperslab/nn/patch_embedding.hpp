// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/nn/sublayer.hpp"
#include "hyperslab/ops/classes.hpp"

namespace hyperslab::nn {

struct PatchEmbeddingConfig {
  Dim patches = 0;       ///< patches of an image
  Dim patch_values = 0;  ///< values of a patch
  Dim width = 0;
  bool class_token = true;
  PositionTable positions = PositionTable::learned;  ///< fixed: sinusoids of row and column
  float dropout = 0;
  std::uint64_t seed = 0;
  MatrixInit init;
  float position_std = 0.02F;  ///< initial standard deviation of positions and class token
  TensorGroup group;
  [[nodiscard]] Dim tokens() const { return patches + (class_token ? 1 : 0); }
};

/// Patches of images to vectors, with a class token before them and positions (Dosovitskiy et al.
/// 2021, eq. 1), and dropout. Every rank of the tensor group holds and computes all of it.
class PatchEmbedding {
 public:
  PatchEmbedding(param::ParamStore& params, const PatchEmbeddingConfig& config);

  /// Memory that all slots use in turn: the embedded patches, (B, N, C).
  [[nodiscard]] View plan(Arena& scratch, const ActivationSpec& spec) const;
  /// The fixed table (T, C) is given by the owner of the constants; absent otherwise.
  void set_fixed_positions(CView table) { fixed_positions_ = table; }

  /// patches: (B, N, P) -> y: the stream. `embedded`: of plan().
  void forward(Context& ctx, CView patches, const BatchInfo& batch, const Scratch& scratch,
               View embedded, View y) const;
  /// dy: the stream's gradient, overwritten by its masked self if dropout acts. The patches have no
  /// gradient.
  void backward(Context& ctx, CView patches, const BackwardPass& pass, View embedded,
                View dy) const;

 private:
  [[nodiscard]] ops::Dropout dropout(const BatchInfo& batch, CView x) const;
  PatchEmbeddingConfig config_;
  param::FusedParam weight_;
  param::FusedParam bias_;
  param::FusedParam class_token_;
  param::FusedParam positions_;
  CView fixed_positions_;
};

}  // namespace hyperslab::nn
