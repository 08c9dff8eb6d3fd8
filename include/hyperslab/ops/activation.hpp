// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "hyperslab/core/context.hpp"

namespace hyperslab::ops {

enum class Activation : std::uint8_t {
  gelu,       ///< x Phi(x), exact (Hendrycks & Gimpel 2016)
  gelu_tanh,  ///< its tanh approximation, as in GPT-2
  relu,
  silu,          ///< x sigmoid(x)
  relu_squared,  ///< max(x, 0)^2 (So et al. 2021)
  swiglu,        ///< silu(gate) * up (Shazeer 2020)
  geglu,         ///< gelu(gate) * up, exact gelu (Shazeer 2020)
  geglu_tanh,    ///< gelu_tanh(gate) * up, as in Gemma
};

/// In the order of their numbers.
inline constexpr std::array kActivations = {
    Activation::gelu,         Activation::gelu_tanh, Activation::relu,  Activation::silu,
    Activation::relu_squared, Activation::swiglu,    Activation::geglu, Activation::geglu_tanh};
[[nodiscard]] constexpr std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::relu: return "relu";
    case Activation::silu: return "silu";
    case Activation::relu_squared: return "relu_squared";
    case Activation::swiglu: return "swiglu";
    case Activation::geglu: return "geglu";
    case Activation::geglu_tanh: return "geglu_tanh";
  }
  return "?";
}

[[nodiscard]] constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu ||
         activation == Activation::geglu_tanh;
}

/// y = act(x), any equal shapes; y may alias x. Not for gated activations.
void activation_forward(Context& ctx, Activation activation, CView x, View y);

/// dx = dy * act'(x), any equal shapes; dx may alias dy or x.
void activation_backward(Context& ctx, Activation activation, CView x, CView dy, View dx);

/// y = act(gate) * up. gate_up: (..., 2F), the gate in the first F columns; y: (..., F). amax:
/// (1) f32, or absent: becomes the amax of y as it is stored, as fp8_quantize finds
/// it.
void gated_forward(Context& ctx, Activation activation, CView gate_up, View y, View amax = {});

/// dy: (..., F); gate_up, dgate_up: (..., 2F), which may alias. amax: likewise of dgate_up.
void gated_backward(Context& ctx, Activation activation, CView gate_up, CView dy, View dgate_up,
                    View amax = {});

}  // namespace hyperslab::ops
