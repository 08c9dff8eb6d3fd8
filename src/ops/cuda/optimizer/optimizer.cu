// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/common.cuh"
#include "cuda/tools/reduce.hpp"
#include "update_rules.hpp"

namespace hyperslab::ops::cuda {
namespace {

static_assert(kDecayGranule % 4 == 0, "four elements share a weight decay and a rate");

/// Stores the moments, in bf16 rounded stochastically by random bits of the weights before the
/// update, `x`, and its number.
template <int N>
__device__ void store_moments(Dim i, const float (&m)[N], const float (&v)[N], const float (&)[N],
                              std::uint32_t, float* exp_avg, float* exp_avg_sq) {
  store<N>(exp_avg + i, m);
  store<N>(exp_avg_sq + i, v);
}
template <int N>
__device__ void store_moments(Dim i, const float (&m)[N], const float (&v)[N], const float (&x)[N],
                              std::uint32_t update, bf16* exp_avg, bf16* exp_avg_sq) {
  Vec<bf16, N> first;
  Vec<bf16, N> second;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const std::uint32_t random =
        rounding_bits(__float_as_uint(x[k]), __float_as_uint(m[k]), update);
    first.at[k].bits = bf16_rounded_stochastically(__float_as_uint(m[k]), random);
    second.at[k].bits = bf16_rounded_stochastically(__float_as_uint(v[k]), random >> 16U);
  }
  *reinterpret_cast<Vec<bf16, N>*>(exp_avg + i) = first;
  *reinterpret_cast<Vec<bf16, N>*>(exp_avg_sq + i) = second;
}

/// Four elements per thread; V is the dtype of the compute copy, which may be absent, G the
/// gradient's, M the moments'.
template <class V, class G, class M>
struct AdamWUpdate {
  static constexpr int kWidth = 4;
  AdamWConstants constants;
  const float* decay;
  const float* rate;  // may be null
  const StepState* state;
  float* master;
  const G* gradient;
  M* exp_avg;
  M* exp_avg_sq;
  V* value;

  template <int N>
  __device__ void at(Dim i) const {
    if (state->skip != 0) return;
    float x[N];
    float g[N];
    float m[N];
    float v[N];
    load<N>(gradient + i, g);
    load<N>(exp_avg + i, m);
    load<N>(exp_avg_sq + i, v);
    load<N>(master + i, x);
    const float clip_scale = state->clip_scale;
    float learning_rate = state->input.learning_rate;
    if (rate != nullptr) learning_rate *= rate[i / kDecayGranule];
    const float inverse1 = 1.0F / state->bias_correction1;
    const float inverse2 = 1.0F / state->bias_correction2;
    const float weight_decay = decay[i / kDecayGranule];
    const bool cautious = constants.decay_rule == DecayRule::cautious;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      g[k] *= clip_scale;
      m[k] = constants.beta1 * m[k] + (1.0F - constants.beta1) * g[k];
      v[k] = constants.beta2 * v[k] + (1.0F - constants.beta2) * g[k] * g[k];
    }
    store_moments<N>(i, m, v, x, static_cast<std::uint32_t>(state->adam_step), exp_avg, exp_avg_sq);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float direction = m[k] * inverse1 / (sqrtf(v[k] * inverse2) + constants.eps);
      x[k] -= learning_rate * (direction + decay_of(x[k], direction, weight_decay, cautious));
    }
    store<N>(master + i, x);
    if (value != nullptr) store<N>(value + i, x);
  }
};

template <class V, class G>
struct SgdUpdate {
  static constexpr int kWidth = 4;
  float momentum;
  const float* decay;
  const StepState* state;
  float* master;
  const G* gradient;
  float* momentum_buffer;
  V* value;

  template <int N>
  __device__ void at(Dim i) const {
    if (state->skip != 0) return;
    float x[N];
    float g[N];
    float b[N];
    load<N>(gradient + i, g);
    load<N>(momentum_buffer + i, b);
    load<N>(master + i, x);
    const float clip_scale = state->clip_scale;
    const float learning_rate = state->input.learning_rate;
    const float weight_decay = decay[i / kDecayGranule];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      b[k] = momentum * b[k] + (g[k] * clip_scale + weight_decay * x[k]);
      x[k] -= learning_rate * b[k];
    }
    store<N>(momentum_buffer + i, b);
    store<N>(master + i, x);
    if (value != nullptr) store<N>(value + i, x);
  }
};

/// For accesses to four elements at once; null is.
template <class T>
bool is_aligned(const T* elements) {
  return reinterpret_cast<std::uintptr_t>(elements) % (4 * sizeof(T)) == 0;
}

/// sums of the gradient (+)= the partial sums, in a fixed order. One block.
__global__ void add_squares_kernel(const SquareSum* partial, int parts, float* sums) {
  __shared__ double scratch[32];
  overlap();
  wait_for_earlier();
  double squares = 0;
  double non_finite = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += static_cast<int>(blockDim.x)) {
    squares += partial[i].squares;
    non_finite += partial[i].non_finite;
  }
  squares = block_sum(squares, scratch);
  non_finite = block_sum(non_finite, scratch);
  if (threadIdx.x != 0) return;
  sums[kSumNormSquared] += static_cast<float>(squares);
  sums[kSumNonFinite] += static_cast<float>(non_finite);
}

template <class M>
void adamw_of(Context& ctx, const AdamWConstants& constants, const StepState* state,
              const UpdateOperands& operands, View exp_avg, View exp_avg_sq) {
  const View value = operands.value;
  with_element(value ? value.dtype() : DType::f32, "adamw", [&]<class V>(V) {
    with_gradient(operands.gradient, [&]<class G>(const G* gradient) {
      const AdamWUpdate<V, G, M> op = {constants,
                                       operands.decay.data<float>(),
                                       optional_data<float>(operands.rate),
                                       state,
                                       operands.master.data<float>(),
                                       gradient,
                                       exp_avg.data<M>(),
                                       exp_avg_sq.data<M>(),
                                       optional_data<V>(value)};
      const bool vectors = is_aligned(op.master) && is_aligned(op.gradient) &&
                           is_aligned(op.exp_avg) && is_aligned(op.exp_avg_sq) &&
                           is_aligned(op.value);
      for_each(ctx, "adamw", operands.master, vectors, op);
    });
  });
}

}  // namespace

void adamw(Context& ctx, const AdamWConstants& constants, const StepState* state,
           const UpdateOperands& operands, View exp_avg, View exp_avg_sq) {
  if (exp_avg.dtype() == DType::bf16) {
    return adamw_of<bf16>(ctx, constants, state, operands, exp_avg, exp_avg_sq);
  }
  adamw_of<float>(ctx, constants, state, operands, exp_avg, exp_avg_sq);
}

void sgd(Context& ctx, float momentum, const StepState* state, const UpdateOperands& operands,
         View momentum_buffer) {
  const View value = operands.value;
  with_element(value ? value.dtype() : DType::f32, "sgd", [&]<class V>(V) {
    with_gradient(operands.gradient, [&]<class G>(const G* gradient) {
      const SgdUpdate<V, G> op = {momentum,
                                  operands.decay.data<float>(),
                                  state,
                                  operands.master.data<float>(),
                                  gradient,
                                  momentum_buffer.data<float>(),
                                  optional_data<V>(value)};
      const bool vectors = is_aligned(op.master) && is_aligned(op.gradient) &&
                           is_aligned(op.momentum_buffer) && is_aligned(op.value);
      for_each(ctx, "sgd", operands.master, vectors, op);
    });
  });
}

void add_norm_squared(Context& ctx, CView gradient, View sums) {
  auto* out = sums.data<float>();
  const SquareSum* partial = sum_of_squares(ctx, "add_norm_squared", gradient);
  launch_waiting(ctx, "add_norm_squared", kOneBlock, add_squares_kernel, {1, 256}, partial,
                 sum_of_squares_blocks(gradient.numel()), out);
}

}  // namespace hyperslab::ops::cuda
