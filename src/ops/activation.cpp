// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/activation.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr double kForwardFlops = 10;  // per element, an exponential counted as a handful
constexpr double kBackwardFlops = 15;

double count(CView view) { return static_cast<double>(view.numel()); }

void require_amax(Context& ctx, CView amax, const char* what) {
  if (amax) require_operand(ctx, amax, {1}, DType::f32, what);
}

}  // namespace

void activation_forward(Context& ctx, Activation activation, CView x, View y) {
  require(!is_gated(activation), "activation_forward: not for gated activations");
  require_here(ctx, x, "activation_forward x");
  require_operand(ctx, y, x.shape(), x.dtype(), "activation_forward y");
  if (on_meta(ctx, "activation_forward", kForwardFlops * count(x), {x, y})) return;
  dispatch<cuda::activation_forward, cpu::activation_forward>(ctx, activation, x, y);
}

void activation_backward(Context& ctx, Activation activation, CView x, CView dy, View dx) {
  require(!is_gated(activation), "activation_backward: not for gated activations");
  require_here(ctx, x, "activation_backward x");
  require_operand(ctx, dy, x.shape(), x.dtype(), "activation_backward dy");
  require_operand(ctx, dx, x.shape(), x.dtype(), "activation_backward dx");
  if (on_meta(ctx, "activation_backward", kBackwardFlops * count(x), {x, dy, dx})) return;
  dispatch<cuda::activation_backward, cpu::activation_backward>(ctx, activation, x, dy, dx);
}

void gated_forward(Context& ctx, Activation activation, CView gate_up, View y, View amax) {
  require(is_gated(activation), "gated_forward: only for gated activations");
  require_here(ctx, y, "gated_forward y");
  const Dim F = last(y, "gated_forward y");
  require_rows(ctx, gate_up, leading(y.shape()), 2 * F, y.dtype(), "gated_forward gate_up");
  require_amax(ctx, amax, "gated_forward amax");
  if (on_meta(ctx, "gated_forward", (kForwardFlops + 1) * count(y), {gate_up, y})) return;
  dispatch<cuda::gated_forward, cpu::gated_forward>(ctx, activation, gate_up, y, amax);
}

void gated_backward(Context& ctx, Activation activation, CView gate_up, CView dy, View dgate_up,
                    View amax) {
  require(is_gated(activation), "gated_backward: only for gated activations");
  require_here(ctx, dy, "gated_backward dy");
  const Dim F = last(dy, "gated_backward dy");
  const Dim rows = leading(dy.shape());
  require_rows(ctx, gate_up, rows, 2 * F, dy.dtype(), "gated_backward gate_up");
  require_rows(ctx, dgate_up, rows, 2 * F, dy.dtype(), "gated_backward dgate_up");
  require_amax(ctx, amax, "gated_backward amax");
  const double flops = (kBackwardFlops + 3) * count(dy);
  if (on_meta(ctx, "gated_backward", flops, {gate_up, dy, dgate_up})) return;
  dispatch<cuda::gated_backward, cpu::gated_backward>(ctx, activation, gate_up, dy, dgate_up, amax);
}

}  // namespace hyperslab::ops
