// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "hyperslab/model/arenas.hpp"
#include "hyperslab/model/spec.hpp"
#include "hyperslab/nn/embedding.hpp"
#include "hyperslab/nn/head.hpp"
#include "hyperslab/sharding/strategy.hpp"

namespace hyperslab::model {

using nn::Accumulate;

/// Contiguous units of the model (0 is the embedding, then the blocks, then the head) that a rank
/// runs without a transfer in between.
struct Chunk {
  int first_unit = 0;
  int units = 0;
  int slots = 1;  ///< microbatches whose activations are kept at once
};

struct StageOptions {
  Dim B = 1;                    ///< microbatch
  Dim T = 1;                    ///< sequence
  std::vector<Chunk> chunks;    ///< empty: one, of the whole model
  bool training = true;         ///< false: no gradients are planned and all blocks share one slot
  bool cache = false;           ///< keys and values of T tokens are kept for decode()
  bool split_backward = false;  ///< backward comes in two halves
  nn::Recompute recompute = nn::Recompute::none;
  DType compute = DType::f32;
  bool fused_attention = true;  ///< where the deck leaves the choice: scores are not kept
  std::uint64_t seed = 0;       ///< of initial values and dropout
  nn::TensorGroup tensor;
  param::HolderRanks ranks;                ///< of this rank among those with the same parameters
  std::vector<param::Role> trained_roles;  ///< the others are frozen; empty: all are trained
  Dim vocabulary_multiple = 1;  ///< the vocabulary is padded to a multiple of it on every rank
  std::size_t bucket_bytes = 16U << 20;
  std::size_t logits_bytes = 32U << 20;  ///< largest chunk of logits
};

/// What the loader fills for a microbatch, on the stage's device.
struct BatchViews {
  View tokens;            ///< (B, T) i32
  View targets;           ///< (B, T) i32
  View token_sort_index;  ///< (B * T) i32
  View sample_position;   ///< (B) i64
};

enum class Mode : std::uint8_t { evaluate, train };

/// A microbatch's place on a rank.
struct SlotId {
  int chunk = 0;
  int slot = 0;
};

/// The layers of a model that this rank holds, cut into units: the embedding, blocks, the head.
/// Units are counted from 0 on every rank, over all of its chunks. Forward runs the units of a
/// chunk in order, backward in reverse; between units the caller may start collectives. The stage
/// keeps no activations outside its slots.
class Stage {
 public:
  /// `strategy` takes the parameters' memory. It is used here alone, but refers to params().
  Stage(ModelSpec spec, const StageOptions& options, Arenas& arenas, dp::ShardStrategy& strategy);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const StageOptions& options() const { return options_; }
  [[nodiscard]] param::ParamStore& params() { return params_; }
  [[nodiscard]] const param::ParamStore& params() const { return params_; }
  [[nodiscard]] int units() const { return static_cast<int>(units_.size()); }
  /// Units [first, last) of a chunk.
  struct UnitRange {
    int first = 0;
    int last = 0;
  };
  [[nodiscard]] UnitRange units(int chunk) const;
  /// Which unit of the model a unit of this rank is.
  [[nodiscard]] int unit_of_model(int unit) const { return units_.at(index(unit)).layer + 1; }
  [[nodiscard]] int chunks() const { return static_cast<int>(options_.chunks.size()); }
  [[nodiscard]] bool has_embedding(int chunk) const;
  [[nodiscard]] bool has_head(int chunk) const;
  [[nodiscard]] const BatchViews& batch(SlotId id) const { return slot(id).batch; }
  /// Bytes of activations that a slot of a chunk takes.
  [[nodiscard]] std::int64_t slot_bytes(int chunk) const {
    return slot_bytes_[static_cast<std::size_t>(chunk)];
  }

  /// Fills constants, and masters and values with initial values.
  void initialize(Context& ctx);

  /// Scalars and sums of the step, shared by all microbatches.
  using StepViews = nn::Head::Step;
  /// Mode::train leaves in the slot what backward needs and, in the head, already computes the
  /// gradient of its input and weight (logits live for one row chunk only).
  void forward(Context& ctx, SlotId id, int unit, Mode mode, const StepViews& step,
               Accumulate accumulate);
  /// Behind the last unit of a chunk without the head: what is sent on is in output().
  void finish_forward(Context& ctx, SlotId id);
  void backward(Context& ctx, SlotId id, int unit, const StepViews& step, Accumulate accumulate,
                nn::BackwardPart part = nn::BackwardPart::both);

  /// Where the stream enters a chunk without the embedding, what leaves one without the head, and
  /// the gradient of what left, which backward replaces by that of what entered.
  [[nodiscard]] View input(SlotId id) const { return slot(id).entry; }
  [[nodiscard]] View output(SlotId id) const { return slot(id).output; }
  [[nodiscard]] View gradient(SlotId id) const { return slot(id).d; }

  /// Generation: tokens: (B, T_new) i32, `past` tokens are in the cache; logits: (B, columns) of
  /// the last token. Needs options.cache and the whole model.
  void decode(Context& ctx, CView tokens, Dim past, View logits);
  /// Columns of decode's logits: the vocabulary with padding.
  [[nodiscard]] Dim logits_columns() const { return vocabulary_.rows; }

  /// The residual stream behind a unit, as forward left it; for looking inside.
  [[nodiscard]] CView activation(SlotId id, int unit) const;

 private:
  enum class UnitKind : std::uint8_t { embedding, block, head };
  struct Unit {
    UnitKind kind = UnitKind::block;
    int chunk = 0;
    int layer = 0;   ///< of the model
    int block = -1;  ///< of this stage
  };
  struct Slot {
    BatchViews batch;
    View entry;                           ///< stream: the embedding's output, or what was received
    std::vector<nn::Block::Slot> blocks;  ///< of the chunk; empty where all blocks share one
    std::vector<View> inputs;             ///< of the chunk's blocks, with Recompute::full
    nn::Norm::Slot final_norm;
    View output;
    View d;                     ///< gradient of the residual stream
    nn::ResidualStream stream;  ///< between two units of forward
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] Slot& slot(SlotId id) { return slots_.at(index(id.chunk)).at(index(id.slot)); }
  [[nodiscard]] const Slot& slot(SlotId id) const {
    return slots_.at(index(id.chunk)).at(index(id.slot));
  }
  [[nodiscard]] nn::BlockConfig block_config() const;
  [[nodiscard]] nn::EmbeddingConfig embedding_config() const;
  [[nodiscard]] bool has_final_norm() const { return spec_.norm_place == NormPlace::pre; }
  [[nodiscard]] bool shares_block_slot() const {
    return !options_.training || options_.recompute == nn::Recompute::full;
  }
  [[nodiscard]] nn::ActivationSpec activation_spec() const {
    return {options_.B, options_.T, options_.compute, statistics_};
  }
  [[nodiscard]] Shape stream_shape() const {
    return options_.tensor.stream_shape(options_.B, options_.T, spec_.width);
  }
  void declare();
  void declare_unit(int chunk, int global_unit);
  void plan_constants(Arenas& arenas);
  void plan_shared(Arenas& arenas);
  void plan_slot(Arenas& arenas, int chunk, Slot& slot) const;
  void plan_cache(Arenas& arenas);
  [[nodiscard]] int place(const Unit& unit) const;
  [[nodiscard]] nn::Block::Slot& block_slot(Slot& slot, const Unit& unit);
  [[nodiscard]] CView block_input(SlotId id, int unit) const;
  void keep_input(Context& ctx, Slot& slot, const Unit& unit) const;
  [[nodiscard]] nn::BatchInfo info(const Slot& slot, Mode mode, const StepViews& step) const;
  [[nodiscard]] CView head_input(Context& ctx, Slot& slot) const;
  void head_forward(Context& ctx, Slot& slot, Mode mode, const StepViews& step,
                    Accumulate accumulate);
  void block_backward(Context& ctx, SlotId id, int unit, const nn::BackwardPass& pass);

  ModelSpec spec_;
  StageOptions options_;
  DType statistics_;  ///< of norms and attention: f32, or f64 where computing in f64
  nn::VocabularySplit vocabulary_;
  param::ParamStore params_;
  std::vector<Unit> units_;
  std::unique_ptr<nn::Embedding> embedding_;
  std::vector<nn::Block> blocks_;
  nn::Norm final_norm_;
  std::unique_ptr<nn::Head> head_;
  View rope_cosines_;
  View rope_sines_;
  View fixed_positions_;
  nn::RopeTables rope_;
  nn::Scratch scratch_;
  nn::Head::Memory head_memory_;
  nn::Block::Slot shared_block_;  ///< where blocks share one
  View last_rows_;                ///< (B, C): head input of decode
  std::vector<nn::CacheSlot> cache_;
  std::vector<std::vector<Slot>> slots_;  ///< [chunk][slot]
  std::vector<std::int64_t> slot_bytes_;
};

}  // namespace hyperslab::model
