// SPDX-License-Identifier: Apache-2.0
// The units of a transformer and the memory that they share.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host_inputs.hpp"
#include "hyperslab/model/transformer.hpp"

namespace hyperslab::model {

/// State that the units of one stage of a transformer share.
struct TransformerParts {
  ModelSpec spec;
  StageOptions options;
  nn::BlockConfig block;
  nn::EmbeddingConfig embedding;
  nn::RopeTables rope;
  nn::RopeTables local_rope;  ///< for layers with a window
  nn::Scratch scratch;
  /// One for all blocks that share it: of those without experts, of those with them.
  std::array<std::unique_ptr<nn::Block::Slot>, 2> one_slot;
  int sharing_blocks = 0;                   ///< so far
  std::unique_ptr<HostInputs> host_inputs;  ///< absent if all inputs rest on the device
  /// A tied token table on this rank: the embedding's, with which the head computes, too.
  const param::FusedParam* token_table = nullptr;
  bool head_writes_token_table = false;

  /// True if the next block of the stage shares one slot with others; counts it.
  [[nodiscard]] bool next_shares_slot() {
    const bool all = !options.training || options.recompute_layers == 0;
    const bool shares = !options.training || options.recompute == nn::Recompute::full;
    return shares && (sharing_blocks++ < options.recompute_layers || all);
  }
  /// True if the inputs of the block that was counted last rest on the host.
  [[nodiscard]] bool rests_on_host() const {
    return options.block_inputs == Home::host &&
           (options.host_layers == 0 || sharing_blocks <= options.host_layers);
  }
  [[nodiscard]] bool has_final_norm() const { return spec.has_final_norm(); }
  [[nodiscard]] nn::ActivationSpec activations() const {
    return {options.B, options.T, options.compute, options.statistics()};
  }
  /// Shape of the residual stream on this rank.
  [[nodiscard]] Shape stream() const {
    return options.tensor.stream_shape(options.B, options.T, spec.width);
  }
  /// The slot that blocks like that of a layer share; null until the first one takes it.
  [[nodiscard]] std::unique_ptr<nn::Block::Slot>& shared_slot(int layer) {
    return one_slot.at(spec.experts.at(layer) ? 1 : 0);
  }
  /// The configuration of the block of a layer, whose attention may have a window.
  [[nodiscard]] nn::BlockConfig block_of(int layer) const {
    nn::BlockConfig config = block;
    if (!spec.is_of_images()) config.scores.mask.window = spec.scores.window_of(layer);
    return config;
  }
  [[nodiscard]] const nn::RopeTables& rope_of(int layer) const {
    return spec.scores.window_of(layer) > 0 ? local_rope : rope;
  }
  /// Inputs of the layers that differ from microbatch to microbatch.
  [[nodiscard]] nn::BatchInfo info(const UnitCall& call) const {
    const View& own = call.batch.own_first_keys;
    return {call.batch.sample_position,
            call.step.state,
            call.mode == Mode::train,
            call.batch.first_keys,
            own ? own : call.batch.first_keys,
            call.mode == Mode::train ? call.step.sums : View(),
            call.step.loads};
  }
  /// A training pass needs the samples' positions if dropout acts.
  [[nodiscard]] bool drops(Mode mode) const {
    return mode == Mode::train &&
           (spec.dropout > 0 || spec.drop_path > 0 || options.adapter.dropout > 0);
  }
};

/// The sizes of the block of a layer, as ModelSpec alone gives them.
[[nodiscard]] nn::BlockConfig block_sizes(const ModelSpec& spec, ops::AttentionMask mask);
/// The configuration of the blocks of a model.
[[nodiscard]] nn::BlockConfig block_config(const ModelSpec& spec, const StageOptions& options,
                                           ops::AttentionMask mask);

class TokenEmbedding final : public Unit {
 public:
  TokenEmbedding(param::ParamStore& params, const TransformerParts& parts)
      : parts_(parts), embedding_(params, parts.embedding) {}
  [[nodiscard]] const param::FusedParam& table() const { return embedding_.table(); }

  void plan_shared(Arenas& arenas) override;
  [[nodiscard]] CView plan(Arena& activations, CView in) override;
  void initialize(Context& ctx) override;
  [[nodiscard]] nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream in) override;
  void backward(Context& ctx, const UnitCall& call) override;
  [[nodiscard]] BatchViews reads(Mode mode) const override;
  [[nodiscard]] CView input(int /*slot*/) const override { return {}; }

 private:
  const TransformerParts& parts_;
  nn::Embedding embedding_;
  View fixed_positions_;       ///< (T_max, C)
  std::vector<View> outputs_;  ///< stream, of every slot
};

class TransformerBlock final : public Unit {
 public:
  TransformerBlock(param::ParamStore& params, TransformerParts& parts, int layer);

  void plan_shared(Arenas& arenas) override;
  [[nodiscard]] CView plan(Arena& activations, CView in) override;
  [[nodiscard]] nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream in) override;
  void backward(Context& ctx, const UnitCall& call) override;
  void after_step(Context& ctx, CView loads, const ops::StepState* state) override {
    block_.after_step(ctx, loads, state);
  }
  [[nodiscard]] BatchViews reads(Mode mode) const override {
    return BatchViews{}
        .with(&Batch::sample_position, parts_.drops(mode))
        .with(&Batch::first_keys, parts_.options.documents);
  }
  [[nodiscard]] CView input(int slot) const override;

 private:
  struct Slot {
    nn::Block::Slot block;  ///< empty if blocks share one
    View sum;               ///< stream at entry, with Recompute::full and if it is a sum
    int on_host = -1;       ///< number of the input in TransformerParts::host_inputs
    CView input;            ///< the residual that entered, or the sum
  };
  [[nodiscard]] nn::Block::Slot& memory(Slot& slot) const;
  [[nodiscard]] const nn::RopeTables& rope() const { return parts_.rope_of(layer_); }
  [[nodiscard]] nn::ResidualStream keep(Context& ctx, const Slot& slot,
                                        nn::ResidualStream in) const;
  [[nodiscard]] nn::ResidualStream decode(Context& ctx, const UnitCall& call,
                                          const nn::BatchInfo& info, nn::ResidualStream in);

  TransformerParts& parts_;
  int layer_;
  bool shares_slot_;
  bool rests_on_host_;
  std::string name_;
  nn::Block block_;
  std::vector<Slot> slots_;
};

/// The final norm, if norms come before sublayers, and the output projection with its loss.
class LmHead final : public Unit {
 public:
  LmHead(param::ParamStore& params, const TransformerParts& parts);

  void plan_shared(Arenas& arenas) override;
  [[nodiscard]] CView plan(Arena& activations, CView in) override;
  [[nodiscard]] nn::ResidualStream forward(Context& ctx, const UnitCall& call,
                                           nn::ResidualStream in) override;
  void backward(Context& ctx, const UnitCall& call) override;
  [[nodiscard]] BatchViews reads(Mode mode) const override;
  [[nodiscard]] bool forward_writes_gradients() const override { return true; }
  [[nodiscard]] CView input(int slot) const override;
  [[nodiscard]] HeadResults results() const override {
    return {.logits_columns = head_.columns() * parts_.options.tensor.size(),
            .class_logits = {},
            .target_scores = memory_.scores};
  }

 private:
  struct Slot {
    nn::Norm::Slot norm;
    CView input;  ///< the residual that entered
  };
  [[nodiscard]] CView normalized(Context& ctx, nn::ResidualStream in, nn::Norm::Slot& slot) const;
  void decode(Context& ctx, const UnitCall& call, nn::ResidualStream in, const Slot& slot) const;
  void logits_of(Context& ctx, CView rows, View logits) const;
  /// Logits of some rows of x, in products of as many rows as the loss's.
  void logits_of(Context& ctx, CView x, std::span<const Dim> rows, View logits) const;
  template <class Product>
  void on_all_ranks(Context& ctx, View logits, Product&& product) const;

  const TransformerParts& parts_;
  nn::Norm norm_;
  nn::Head head_;
  nn::Head::Memory memory_;
  View last_rows_;    ///< (B, C): the rows whose logits Mode::decode computes
  View rank_logits_;  ///< (tensor ranks, rows of a chunk, columns): theirs; absent with one rank
  std::vector<Slot> slots_;
};

}  // namespace hyperslab::model
