// SPDX-License-Identifier: Apache-2.0
// The ends of a vision transformer.
#pragma once

#include <vector>

#include "hyperslab/nn/class_head.hpp"
#include "hyperslab/nn/patch_embedding.hpp"
#include "transformer_units.hpp"

namespace hyperslab::model {

class PatchUnit final : public Unit {
 public:
  PatchUnit(param::ParamStore& params, const TransformerParts& parts);

  void plan_shared(Arenas& arenas) override;
  [[nodiscard]] CView plan(Arena& activations, CView in) override;
  void initialize(Context& ctx) override;
  [[nodiscard]] nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream in) override;
  void backward(Context& ctx, const UnitCall& call) override;
  [[nodiscard]] BatchViews reads(Mode mode) const override {
    return BatchViews{&Batch::patches}.with(&Batch::sample_position, parts_.drops(mode));
  }
  [[nodiscard]] CView input(int /*slot*/) const override { return {}; }

 private:
  const TransformerParts& parts_;
  nn::PatchEmbedding embedding_;
  View embedded_;              ///< (B, N, C), for all slots
  View fixed_positions_;       ///< (T, C)
  std::vector<View> outputs_;  ///< stream, of every slot
};

class ClassUnit final : public Unit {
 public:
  ClassUnit(param::ParamStore& params, const TransformerParts& parts);

  void plan_shared(Arenas& arenas) override;
  [[nodiscard]] CView plan(Arena& activations, CView in) override;
  [[nodiscard]] nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream in) override;
  /// Forward has computed all gradients.
  void backward(Context& /*ctx*/, const UnitCall& /*call*/) override {}
  [[nodiscard]] BatchViews reads(Mode /*mode*/) const override {
    return {&Batch::labels, &Batch::label_weights};
  }
  [[nodiscard]] bool forward_writes_gradients() const override { return true; }
  [[nodiscard]] HeadResults results() const override {
    return {.logits_columns = 0, .class_logits = memory_.logits, .target_scores = {}};
  }
  [[nodiscard]] CView input(int slot) const override {
    return slots_.at(static_cast<std::size_t>(slot)).input;
  }

 private:
  struct Slot {
    nn::ClassHead::Slot head;
    CView input;  ///< the residual that entered
  };
  const TransformerParts& parts_;
  nn::ClassHead head_;
  nn::ClassHead::Memory memory_;
  std::vector<Slot> slots_;
};

}  // namespace hyperslab::model
