// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "hyperslab/model/arenas.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/nn/head.hpp"

namespace hyperslab::model {

using nn::Accumulate;

struct StageOptions {
  Dim B = 1;             ///< microbatch
  Dim T = 1;             ///< sequence
  int slots = 1;         ///< microbatches whose activations are kept at once
  bool training = true;  ///< false: no gradients are planned and all blocks share one slot
  bool cache = false;    ///< keys and values of T tokens are kept for decode()
  DType compute = DType::f32;
  bool fused_attention = true;  ///< where the deck leaves the choice: scores are not kept
  std::uint64_t seed = 0;       ///< of initial values and dropout
  int data_ranks = 1;           ///< buckets divide by them
  std::size_t bucket_bytes = 16U << 20;
  std::size_t logits_bytes = 32U << 20;  ///< largest chunk of logits
};

/// What the loader fills for a microbatch, on the stage's device.
struct BatchViews {
  View tokens;           ///< (B, T) i32
  View targets;          ///< (B, T) i32
  View order;            ///< (B * T) i32
  View sample_position;  ///< (B) i64
};

enum class Pass : std::uint8_t { evaluate, train };

/// The layers of a model that this rank holds, cut into units: the embedding, every block, the
/// head. Forward runs units in order, backward in reverse; between units the caller may start
/// collectives. The stage keeps no activations outside its slots.
class Stage {
 public:
  Stage(ModelSpec spec, const StageOptions& options, Arenas& arenas);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const StageOptions& options() const { return options_; }
  [[nodiscard]] nn::ParamTable& params() { return params_; }
  [[nodiscard]] const nn::ParamTable& params() const { return params_; }
  [[nodiscard]] int units() const { return static_cast<int>(blocks_.size()) + 2; }
  [[nodiscard]] const BatchViews& batch(int slot) const { return slots_.at(index(slot)).batch; }

  /// Fills constants and the masters' initial values.
  void initialize(Context& ctx);

  /// Scalars and sums of the step, shared by all microbatches.
  struct StepViews {
    const ops::StepState* state = nullptr;
    View sums;  ///< (ops::kSumCount)
  };
  /// Pass::train leaves in the slot what backward needs and, in the head, already computes the
  /// gradient of its input and weight (logits live for one row chunk only).
  void forward(Context& ctx, int slot, int unit, Pass pass, const StepViews& step,
               Accumulate accumulate);
  void backward(Context& ctx, int slot, int unit, const StepViews& step, Accumulate accumulate);

  /// Generation: tokens: (B, T_new) i32, `past` tokens are in the cache; logits: (B, V) of the last
  /// token. Needs options.cache.
  void decode(Context& ctx, CView tokens, Dim past, View logits);

  /// The residual stream behind unit `unit` of a slot, as forward left it; for looking inside.
  [[nodiscard]] CView activation(int slot, int unit) const;

 private:
  struct Slot {
    BatchViews batch;
    View embedded;                        ///< (B, T, C)
    std::vector<nn::Block::Slot> blocks;  ///< one for all blocks where not training
    nn::Norm::Slot final_norm;
    View d;                     ///< (B, T, C) gradient of the residual stream
    nn::ResidualStream stream;  ///< between two units of forward
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] nn::BlockConfig block_config() const;
  [[nodiscard]] bool has_final_norm() const { return spec_.norm_place == NormPlace::pre; }
  void declare();
  void plan_constants(Arenas& arenas);
  void plan_slot(Arenas& arenas, Slot& slot) const;
  void plan_cache(Arenas& arenas);
  [[nodiscard]] nn::Block::Slot& block_slot(Slot& slot, int block) const;
  [[nodiscard]] nn::BatchInfo info(const Slot& slot, Pass pass, const StepViews& step) const;
  [[nodiscard]] CView head_input(Context& ctx, Slot& slot) const;

  ModelSpec spec_;
  StageOptions options_;
  DType statistics_;  ///< of norms and attention: f32, or f64 where computing in f64
  nn::ParamTable params_;
  std::unique_ptr<nn::Embedding> embedding_;
  std::vector<nn::Block> blocks_;
  nn::Norm final_norm_;
  std::unique_ptr<nn::Head> head_;
  View rope_cosines_;
  View rope_sines_;
  View fixed_positions_;
  nn::RopeTables rope_;
  nn::Scratch scratch_;
  View logits_;
  View last_rows_;  ///< (B, C): head input of decode
  std::vector<nn::CacheSlot> cache_;
  std::vector<Slot> slots_;
};

}  // namespace hyperslab::model
