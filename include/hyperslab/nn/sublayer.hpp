// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <any>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hyperslab/nn/block_config.hpp"
#include "hyperslab/nn/for_tokens.hpp"
#include "hyperslab/ops/decode_block.hpp"

namespace hyperslab::nn {

/// The part of a backward pass: gradients of inputs, of weights, or both as they come.
enum class BackwardPart : std::uint8_t { both, input, weight };

/// Rotary tables shared by all layers: (T_max, D / 2) for the D dimensions of a head that are
/// turned; absent without rotary positions.
using RopeTables = ops::RotaryTables;

/// Inputs that differ from microbatch to microbatch and are no activations.
struct BatchInfo {
  CView sample_position;                  ///< (B) i64
  const ops::StepState* state = nullptr;  ///< on the device
  bool dropout = false;                   ///< true if dropout acts in this pass
  /// (B, T of all context ranks) i32: where the document of every token begins; absent: at 0
  CView first_keys{};
  CView own_first_keys{};  ///< (B, T): likewise, of this rank's tokens
  View sums{};             ///< the step's sums (ops::SumIndex), in a training pass
  View loads{};            ///< (layers with experts, experts), likewise; absent without
  /// True in a training pass.
  [[nodiscard]] bool trains() const { return static_cast<bool>(sums); }
};

/// A sublayer's values of one microbatch, or the memory that all sublayers of a kind use in turn.
/// Each sublayer has a type of its own for either.
using SublayerSlot = std::any;
using SublayerMemory = std::any;
template <class Slot>
[[nodiscard]] const Slot& slot_as(const SublayerSlot& slot) {
  return *std::any_cast<Slot>(&slot);
}
struct SublayerType;

/// Memory shared by all blocks of a stage, for one microbatch at a time. "Stream" stands for the
/// shape of the residual stream, (B, T, C) or this rank's rows of it.
struct Scratch {
  View delta;             ///< stream: a sublayer's output on its way into the residual
  View d_mid;             ///< stream: gradient of a sublayer's input
  View sublayer;          ///< stream: output of a branch that is added with the one before
  View d_sublayer;        ///< stream: gradient of a sublayer's output before its norm, or of the
                          ///< stream that branches read together; absent without either
  View d_masked;          ///< stream: gradient through dropout and drop_path; absent without
  View gathered;          ///< (B, T, C): all rows; only if the stream is cut by rows
  View partial;           ///< (B, T, C): a term of a sum over the tensor group; likewise
  View adapter_gradient;  ///< (B, T, most ranks of a layer): between a layer's adapters
  View rounded_gradient;  ///< bytes: between a layer's products in 8-bit floats
  View norm_out;          ///< stream: only with Recompute::selective
  /// Memory from SublayerType::plan_memory for each kind in the list; with training only.
  std::vector<std::pair<const SublayerType*, SublayerMemory>> sublayers;
  /// The memory of a kind; nothing without training.
  [[nodiscard]] SublayerMemory of(const SublayerType* type) const;
  /// The part that generation of so many tokens uses, in a group of one: delta, sublayer.
  [[nodiscard]] Scratch for_tokens(const TokenCount& count) const;
  /// The part that a feed-forward network uses for a piece of so many rows.
  [[nodiscard]] Scratch for_piece(Dim rows) const;
};
/// Sizes and types of one microbatch's activations.
struct ActivationSpec {
  Dim B = 1;
  Dim T = 1;
  DType compute = DType::f32;
  DType statistics = DType::f32;  ///< dtype of norms and attention
};

/// Room for the values that sublayers keep of texts which are continued together.
struct TextRoom {
  Dim rows = 0;         ///< texts at most
  Dim tokens = 0;       ///< tokens of a text at most
  Dim pages = 0;        ///< pages of all texts
  Dim page_tokens = 0;  ///< tokens of a page, a power of two
};

/// The tokens of a pass that continues texts: they follow `past` earlier ones.
struct TextPass {
  ops::TokenPosition past;
  CView pages{};  ///< as ops::KeyValueCache has them
};

/// Arguments of a forward pass besides its operands.
struct ForwardPass {
  const RopeTables& rope;
  const BatchInfo& batch;
  const Scratch& scratch;
  std::optional<TextPass> texts = std::nullopt;  ///< in generation alone
  Fp8Weights fp8_weights = Fp8Weights::rounded;
  bool repeated = false;  ///< backward follows, and needs what the earlier pass did not keep

  /// The pass of a linear layer's forward, which learns whether to round its weights.
  [[nodiscard]] LinearPass with_fp8_weights(LinearPass linear) const {
    linear.fp8_weights = fp8_weights;
    return linear;
  }
};

/// Arguments of a backward pass besides its operands.
struct BackwardPass {
  const RopeTables& rope;
  const BatchInfo& batch;
  const Scratch& scratch;
  Accumulate accumulate = Accumulate::no;  ///< for gradients of parameters
  BackwardPart part = BackwardPart::both;
  /// True if the sublayers compute no gradients of their outputs' biases (StreamBiases).
  bool skips_output_biases = false;
  /// The pass of a linear layer's backward_input, which learns whether backward_weight follows.
  [[nodiscard]] LinearPass before_weights(LinearPass linear) const {
    if (part == BackwardPart::both) linear.weights_follow = accumulate;
    // By this microbatch's forward pass, or an earlier one's.
    linear.fp8_weights = Fp8Weights::kept;
    return linear;
  }
};

/// The dropout of elements that lie in the residual stream, whose rows may be cut.
[[nodiscard]] ops::Dropout on_stream(const TensorGroup& group, const ContextGroup& context,
                                     ops::Dropout dropout, CView x);

/// The place of a sublayer in the model. Masks of dropout differ by it.
struct SublayerPlace {
  int layer = 0;
  int branch = 0;  ///< its number in the block
};
/// Numbers of the sites of ops::Dropout: a layer has four, [0, 4); the embedding counts as the
/// layer -1. `copy` tells sublayers of one kind in one block apart; 0: the block's usual one.
[[nodiscard]] constexpr std::uint32_t dropout_site(int layer, int site, int copy = 0) {
  return static_cast<std::uint32_t>((layer + 1) * 4 + site) | static_cast<std::uint32_t>(copy)
                                                                  << 24U;
}
/// The site of the input of a linear layer's adapters.
[[nodiscard]] constexpr std::uint32_t adapter_site(int layer, int linear, int copy = 0) {
  return 0x80000000U | dropout_site(layer, linear, copy);
}
/// The dropout of the input of a linear layer's adapters in this pass. `cut_columns`: all columns
/// of an input that is cut by columns over the tensor group; 0: it is not.
[[nodiscard]] ops::Dropout adapter_dropout(const BlockConfig& config, std::uint32_t site,
                                           Dim cut_columns, const BatchInfo& batch);
/// Memory for the values between A and B of a layer's adapters; absent without adapters.
[[nodiscard]] View take_reduced(Arena& activations, const ActivationSpec& spec,
                                const Linear& linear, const std::string& label);
/// Memory for LinearPass::amax; absent where it is of no use, and in a tensor group, which may
/// multiply rows in pieces.
[[nodiscard]] View take_amax(Arena& activations, const TensorGroup& group, const Linear& linear,
                             const std::string& label);

/// A function of the residual stream that a block adds to it: attention, the feed-forward network.
/// Its constructor declares its parameters. It keeps the values that backward reads in slots alone.
class Sublayer {
 public:
  Sublayer() = default;
  virtual ~Sublayer() = default;
  Sublayer(const Sublayer&) = delete;
  Sublayer& operator=(const Sublayer&) = delete;
  Sublayer(Sublayer&&) = delete;
  Sublayer& operator=(Sublayer&&) = delete;

  /// Takes the memory of a microbatch. `shared`: what SublayerType::plan_memory took, of which the
  /// slot keeps the views that passes use; nothing without training.
  [[nodiscard]] virtual SublayerSlot plan(Arena& activations, const SublayerMemory& shared,
                                          const ActivationSpec& spec,
                                          const std::string& label) const = 0;
  /// The part of a slot for so many tokens of generation, without views that only backward reads.
  [[nodiscard]] virtual SublayerSlot for_tokens(const SublayerSlot& slot,
                                                const TokenCount& count) const = 0;
  /// Takes the memory of values that a later pass reads of earlier tokens; called for generation.
  virtual void plan_texts(Arena& /*memory*/, const TextRoom& /*room*/, DType /*compute*/,
                          const std::string& /*label*/) {}

  /// x and y have the shape of the stream. Enqueues on ctx.
  virtual void forward(Context& ctx, CView x, const ForwardPass& pass, const SublayerSlot& slot,
                       View y) const = 0;
  /// Computes again what backward needs and an earlier pass did not keep, without y. False, and
  /// nothing is enqueued: forward() is to be called.
  [[nodiscard]] virtual bool repeat(Context& /*ctx*/, CView /*x*/, const ForwardPass& /*pass*/,
                                    const SublayerSlot& /*slot*/) const {
    return false;
  }
  /// dy -> dx, not aliased; dx may be absent if nothing before trains. x is forward's input. The
  /// slot's values may be overwritten: a repeated forward fills it again. BackwardPart::weight
  /// reads x and the slot only, and computes gradients of matrices; input those of dx and of
  /// vectors.
  ///
  /// Between a layer cut by columns and one cut by rows, both as Linear, rows of the stream travel
  /// beside products, all through Scratch::gathered: (1) backward_input_gathered() of the last
  /// layer leaves all rows of dy there, (2) its backward_weight() reads them, (3)
  /// TensorGroup::start_gather(x) overwrites them, (4) backward_input_summed() of the first layer,
  /// (5) the wait for x, (6) its backward_weight(), (7) the wait for the sums of dx.
  virtual void backward(Context& ctx, CView dy, CView x, const BackwardPass& pass,
                        const SublayerSlot& slot, View dx) const = 0;
  /// The gradient of the bias that forward adds last; absent if there is none, or a frozen one.
  [[nodiscard]] virtual View output_bias_gradient() const { return {}; }
  /// Once a step, after the sums over all ranks: updates what no gradient does. `loads`: as
  /// BatchInfo has them, of all ranks; state: on the device.
  virtual void after_step(Context& /*ctx*/, CView /*loads*/,
                          const ops::StepState* /*state*/) const {}
  /// Sets the operands of the one op for a token through a block, in which this is branch `branch`.
  /// Returns whether the op does all that forward() does.
  [[nodiscard]] virtual bool describe(int /*branch*/, const ForwardPass& /*pass*/,
                                      const SublayerSlot& /*slot*/, ops::DecodeBlock& /*block*/,
                                      ops::DecodeStream& /*stream*/) const {
    return false;
  }
};

/// Numbers of a sublayer of the whole model.
struct SublayerCounts {
  std::int64_t matrices = 0;  ///< parameters in the matrix products of a token
  std::int64_t idle = 0;      ///< parameters in matrices that a token does not pass through
  std::int64_t vectors = 0;   ///< other parameters
  /// Multiplications a token with others of its sample, which become fewer with documents. Products
  /// with a fixed number of tokens do not count.
  double pairs = 0;
};

/// A kind of sublayer: a row of the lists in block.hpp.
struct SublayerType {
  std::string_view name;  ///< a block's name for its parameters
  std::unique_ptr<Sublayer> (*make)(param::ParamStore& params, const std::string& name,
                                    const BlockConfig& config, SublayerPlace place);
  /// Takes the memory that all sublayers of the kind use in turn, for training; called once.
  SublayerMemory (*plan_memory)(Arena& arena, const BlockConfig& config,
                                const ActivationSpec& spec);
  /// The most bytes of Scratch::rounded_gradient.
  Dim (*rounded_gradient_bytes)(const BlockConfig& config, const ActivationSpec& spec);
  SublayerCounts (*count)(const BlockConfig& config, Dim tokens);
};

}  // namespace hyperslab::nn
