// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/activation.hpp"

namespace hyperslab::ops {

enum class Trans : std::uint8_t { no, yes };
/// `yes` adds a result to the output, `no` overwrites it. Parameter gradients are overwritten by
/// the first microbatch of a step and added to by later ones. They are in f32 (f64 for f64), or in
/// bf16 beside activations in bf16: an op then sums in f32 and rounds once.
enum class Accumulate : std::uint8_t { no, yes };

/// True if products of bf16 on CPU ranks are the processor's, AVX512_BF16 or AMX: exact
/// products of two, added in f32 to nearest even, denormals taken for zero. If not, f32 copies are
/// multiplied.
[[nodiscard]] bool cpu_multiplies_bf16();

/// c = op(a) op(b), or c += with `accumulate`. op(a): (M, K), op(b): (K, N), c: (M, N); two
/// dimensions each. c may be f32 if a and b are bf16 or f16. No operand may alias c.
void matmul(Context& ctx, CView a, Trans trans_a, CView b, Trans trans_b, Accumulate accumulate,
            View c);

/// Columns [first, first + count) of a row-major matrix.
template <class AnyView>
struct BasicColumns {
  AnyView matrix;
  Dim first = 0;
  Dim count = 0;
  Trans trans = Trans::no;  ///< op(), if it is an operand
};
using Columns = BasicColumns<View>;
using CColumns = BasicColumns<CView>;
/// All columns of a view, taken as a matrix of its last dimension.
[[nodiscard]] CColumns all_columns(CView view, Trans trans = Trans::no);
[[nodiscard]] Columns all_columns(View view);

/// c = scale * op(a) op(b), or c += with `accumulate`, on columns of wider matrices. op(a): (M, K),
/// op(b): (K, N), c: (M, N). a and b have one dtype, c has it or is f32 (f64 for f64). No operand
/// may alias c. For products that are one of several side by side, such as an adapter's.
void matmul_columns(Context& ctx, const CColumns& a, const CColumns& b, float scale,
                    Accumulate accumulate, const Columns& c);

/// y = x weight^T + bias. x: (..., K); weight: (M, K); bias: (M) or absent; y: (..., M).
void linear_forward(Context& ctx, CView x, CView weight, CView bias, View y);

/// y += x weight^T + bias, as linear_forward(): y's values are added before the sum is rounded.
void linear_forward_add(Context& ctx, CView x, CView weight, CView bias, View y);

/// pre = x weight^T + bias, y = act(pre), in one kernel if the backend can: on a GPU gelu_tanh of
/// bf16 and f16, unless the context is deterministic. On `meta` the ledger's row says "fused" or
/// "separate". Shapes as linear_forward; pre is kept for backward. Not for gated activations.
/// activation_forward of the kept pre gives the bits of y again unless cuBLASLt fused it: then y
/// comes from the unrounded pre and another tanh, and may differ by its rounding. Hopper GPUs have
/// a kernel for many rows that fuses every activation without a gate and keeps the bits.
void linear_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                               Activation activation, View pre, View y);

/// y = act(gate) * up of gate_up = x weight^T + bias, as linear_forward() and gated_forward() have
/// it. weight: (2F, K), the gate's rows first; bias: (2F) or absent; y: (..., F). pre: (..., 2F),
/// room for gate_up, which a GPU may leave as it is.
void linear_gated_forward(Context& ctx, CView x, CView weight, CView bias, Activation activation,
                          View pre, View y);

/// dx = dy weight, or dx += with `accumulate`. dy: (..., M); weight: (M, K); dx: (..., K).
void linear_backward_input(Context& ctx, CView dy, CView weight, Accumulate accumulate, View dx);

/// The outputs of linear_activation_backward_input. dpre: (..., K), overwritten. dbias: (K), (+)=
/// column sums of dpre, before or after it is rounded, the gradient of a bias that was added to
/// pre; absent: not asked for.
struct ActivationGradients {
  View dpre;
  View dbias{};
  Accumulate accumulate_bias = Accumulate::no;
};
/// dpre = (dy weight) * act'(pre): the input gradient of the linear layer that follows an
/// activation, taken through the activation. dy: (..., M); weight: (M, K); pre: (..., K). dpre may
/// alias pre; if it does not, a GPU fuses the activations that linear_activation_forward fuses,
/// also when deterministic. Hopper GPUs fuse every activation without a gate, and in place.
void linear_activation_backward_input(Context& ctx, CView dy, CView weight, CView pre,
                                      Activation activation, const ActivationGradients& gradients);

/// dweight (+)= dy^T x and dbias (+)= column sums of dy; one of the two may be absent. dy: (...,
/// M); x: (..., K), not read if dweight is absent; dweight: (M, K); dbias: (M).
void linear_backward_weight(Context& ctx, CView dy, CView x, Accumulate accumulate, View dweight,
                            View dbias);

}  // namespace hyperslab::ops
