// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "hyperslab/model/spec.hpp"
#include "hyperslab/model/stage_options.hpp"
#include "hyperslab/model/unit.hpp"

namespace hyperslab::model {

/// What the units of one stage of a transformer share.
struct TransformerParts {
  ModelSpec spec;
  StageOptions options;
  nn::BlockConfig block;
  nn::EmbeddingConfig embedding;
  nn::RopeTables rope;
  nn::Scratch scratch;
  std::optional<nn::Block::Slot> one_slot;  ///< of all blocks, if they share one
  /// Of a tied token table on this rank: the embedding's, with which the head computes, too.
  const param::FusedParam* token_table = nullptr;
  bool head_writes_token_table = false;

  [[nodiscard]] bool shares_slot() const {
    return !options.training || options.recompute == nn::Recompute::full;
  }
  [[nodiscard]] bool pre_norm() const { return spec.norm_place == NormPlace::pre; }
  [[nodiscard]] nn::ActivationSpec activations() const {
    return {options.B, options.T, options.compute, options.statistics()};
  }
  /// Shape of the residual stream on this rank.
  [[nodiscard]] Shape stream() const {
    return options.tensor.stream_shape(options.B, options.T, spec.width);
  }
  /// What differs from microbatch to microbatch, for the layers.
  [[nodiscard]] nn::BatchInfo info(const UnitCall& call) const {
    return {call.batch.sample_position, call.step.state, call.mode == Mode::train};
  }
  /// A training pass needs the samples' positions if dropout acts.
  [[nodiscard]] bool drops(Mode mode) const { return mode == Mode::train && spec.dropout > 0; }
};

/// Token embedding, blocks, head with its loss: unit 0, units 1 to `layers`, unit `layers` + 1.
class Transformer final : public Architecture {
 public:
  /// `mask`: which tokens attend to which; causal for a language model.
  Transformer(ModelSpec spec, const StageOptions& options, ops::AttentionMask mask = {});

  [[nodiscard]] int units() const override { return static_cast<int>(parts_.spec.layers) + 2; }
  [[nodiscard]] UnitInfo info(int unit) const override;
  [[nodiscard]] Shape stream() const override { return parts_.stream(); }
  [[nodiscard]] std::unique_ptr<Unit> make(int unit, param::ParamStore& params) override;
  void plan_shared(Arenas& arenas) override;
  void initialize(Context& ctx) override;

 private:
  TransformerParts parts_;
  View rope_cosines_;
  View rope_sines_;
};

}  // namespace hyperslab::model
