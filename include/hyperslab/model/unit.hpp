// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "hyperslab/core/batch.hpp"
#include "hyperslab/model/arenas.hpp"
#include "hyperslab/nn/block.hpp"
#include "hyperslab/nn/head.hpp"

namespace hyperslab::model {

using nn::Accumulate;

/// The purpose of a forward pass. `train` keeps activations for backward and lets dropout act;
/// `decode` computes the logits that follow new tokens, with a key-value cache of the earlier ones.
enum class Mode : std::uint8_t { evaluate, train, decode };

/// Scalars and sums of the step, shared by all microbatches.
using StepViews = nn::Head::Step;

/// Logits that a pass is to give in place of a loss; those of the model's last unit.
struct WantedLogits {
  /// Mode::decode: (B, HeadResults::logits_columns) of token `last` of each sample, or a row for
  /// each of the B T tokens. Mode::evaluate: a row for each of `rows`.
  View to{};
  Dim last = 0;
  std::span<const Dim> rows{};  ///< tokens b T + t, ascending
};

/// The model's last unit besides its pass: views of its memory, absent where a head has none.
struct HeadResults {
  Dim logits_columns = 0;  ///< columns of WantedLogits::to, with padding; 0: the unit gives none
  /// (B, columns) logits of the newest pass without a gradient, of a head of classes.
  CView class_logits{};
  /// (B T, ops::kTargetScoreCount): the newest Mode::evaluate's scores of every target.
  CView target_scores{};
};

/// One pass of one microbatch through a unit.
struct UnitCall {
  int slot = 0;  ///< number of the slot in use, counted from 0 in plan()'s order
  const Batch& batch;
  Mode mode = Mode::train;
  StepViews step = {};
  Accumulate accumulate = Accumulate::no;  ///< for gradients of parameters
  nn::BackwardPart part = nn::BackwardPart::both;
  View d = {};              ///< stream: the gradient of the residual stream, see Unit::backward
  nn::TextPass texts = {};  ///< Mode::decode
  WantedLogits logits = {};

  [[nodiscard]] nn::TokenCount token_count() const {
    return {batch.tokens.shape()[0], batch.tokens.shape()[1]};
  }
};

/// A part of a model between two points at which its residual stream may be handed to another rank:
/// the token embedding, a transformer block, the head. Its constructor declares its parameters. A
/// unit keeps activations in numbered slots alone, whose memory it takes in plan(), so that several
/// microbatches can be on their way; memory that all slots share it takes in plan_shared().
///
/// A CUDA graph that replays a pass sets nothing on the host: the notes that forward leaves in a
/// slot for backward must be the same at every call with that slot.
class Unit {
 public:
  Unit() = default;
  virtual ~Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  Unit(Unit&&) = delete;
  Unit& operator=(Unit&&) = delete;

  /// Called once, before plan(): takes constants and memory that all slots use in turn.
  virtual void plan_shared(Arenas& /*arenas*/) {}
  /// Takes the memory of the next slot. `in`: the stream that will enter, if it lies whole in one
  /// view of the slot's memory; absent if it comes as a sum, or if the unit is the model's first.
  /// Returns the same of the stream that will leave.
  [[nodiscard]] virtual CView plan(Arena& activations, CView in) = 0;
  /// Fills constants. The parameters are initialized by the stage.
  virtual void initialize(Context& /*ctx*/) {}

  /// Enqueues the pass: `in` is the stream that the unit before returned or another rank sent;
  /// absent for the model's first unit. With Mode::train the model's last unit computes the loss
  /// and leaves the gradient of `in` in call.d. It returns an absent stream. The loss is a sum: the
  /// trainer divides by the targets of the global batch that are not ops::kIgnoredTarget.
  [[nodiscard]] virtual nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                                   nn::ResidualStream in) = 0;
  /// Enqueues backward of the newest training pass with call.slot. call.d: the gradient of the
  /// stream that left, replaced by the gradient of the one that entered. BackwardPart::weight does
  /// the rest of BackwardPart::input's work, and leaves call.d alone.
  virtual void backward(Context& ctx, const UnitCall& call) = 0;

  /// nn::Sublayer::after_step.
  virtual void after_step(Context& /*ctx*/, CView /*loads*/, const ops::StepState* /*state*/) {}
  /// The views of a batch that a pass reads.
  [[nodiscard]] virtual BatchViews reads(Mode mode) const = 0;
  /// True if forward with Mode::train writes parameter gradients, as a head does that never keeps
  /// all logits.
  [[nodiscard]] virtual bool forward_writes_gradients() const { return false; }
  /// The stream that entered, as the newest training pass with `slot` kept it; absent for the
  /// model's first unit. For looking inside.
  [[nodiscard]] virtual CView input(int slot) const = 0;
  [[nodiscard]] virtual HeadResults results() const { return {}; }
};

/// The units of a model, and the memory that one stage's units share. A family of models is a class
/// of its own; the stage knows this interface alone.
class Architecture {
 public:
  struct UnitInfo {
    std::string name;  ///< as logs, traces and parameters call it: "embedding", "blocks.3", "head"
    double cost = 0;   ///< multiplications a token, for cutting the model into stages
  };
  Architecture() = default;
  virtual ~Architecture() = default;
  Architecture(const Architecture&) = delete;
  Architecture& operator=(const Architecture&) = delete;
  Architecture(Architecture&&) = delete;
  Architecture& operator=(Architecture&&) = delete;

  [[nodiscard]] virtual int units() const = 0;
  /// The parametrization of its parameters.
  [[nodiscard]] virtual param::Parametrization parametrization() const { return {}; }
  [[nodiscard]] virtual UnitInfo info(int unit) const = 0;
  /// Shape of the residual stream on this rank.
  [[nodiscard]] virtual Shape stream() const = 0;
  /// The position of a chunk's units in the model.
  struct ChunkEnds {
    bool begins = false;  ///< with the model's first unit
    bool ends = false;    ///< with its last
  };
  /// Takes the views of a batch for a slot of a chunk.
  [[nodiscard]] virtual Batch plan_batch(Arena& activations, ChunkEnds chunk) const = 0;
  /// Makes a unit of this stage, which declares its parameters. Called in the order of the model.
  /// The architecture outlives its units.
  [[nodiscard]] virtual std::unique_ptr<Unit> make(int unit, param::ParamStore& params) = 0;
  /// Called once, after the units are made: takes the memory that they share.
  virtual void plan_shared(Arenas& arenas) = 0;
  /// Fills constants that units share.
  virtual void initialize(Context& ctx) = 0;
};

}  // namespace hyperslab::model
