// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "../backend.hpp"
#include "../update_rules.hpp"
#include "bf16_rounding.hpp"
#include "parallel.hpp"
#include "reduction.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kSumChunk = 1 << 16;  // elements per partial sum

template <class T>
SquareSum sum_chunk(const T* x, Dim count) {
  double squares = 0;
  double non_finite = 0;
#pragma omp simd reduction(+ : squares, non_finite)
  for (Dim i = 0; i < count; ++i) {
    const Computed<T> element = widened(x[i]);
    const auto value = static_cast<double>(element);
    squares += value * value;
    non_finite += std::fabs(element) <= std::numeric_limits<Computed<T>>::max() ? 0.0 : 1.0;
  }
  return {squares, non_finite};
}

/// Calls body with the type of the gradient's elements: T, as masters are, or bf16.
template <class T, class Body>
void with_gradient(CView gradient, Body&& body) {
  if (gradient.dtype() == DType::bf16) return std::forward<Body>(body)(gradient.data<bf16>());
  std::forward<Body>(body)(gradient.data<T>());
}

/// The flat spans that AdamW reads and writes; G is how gradients are stored, M how moments are.
template <class T, class G, class M>
struct Spans {
  T* master;
  const G* gradient;
  M* exp_avg;
  M* exp_avg_sq;
};

/// The values that granules share.
struct Granule {
  float decay;
  float rate;
  friend bool operator==(const Granule&, const Granule&) = default;
};

/// Calls update(granule, begin, end) for elements [begin, end) that share one weight decay and
/// rate.
template <class Update>
void for_equal_granules(Context& ctx, const UpdateOperands& operands, Update update) {
  const Dim size = operands.master.numel();
  const float* decays = operands.decay.data<float>();
  const float* rates = operands.rate ? operands.rate.data<float>() : nullptr;
  const auto at = [=](Dim i) { return Granule{decays[i], rates == nullptr ? 1.0F : rates[i]}; };
  const Dim granules = operands.decay.numel();
  parallel_chunks(ctx.threads(), granules, 4 * kDecayGranule, [&](int, Dim begin, Dim end) {
    while (begin < end) {
      Dim next = begin + 1;
      while (next < end && at(next) == at(begin)) ++next;
      update(at(begin), begin * kDecayGranule, std::min(next * kDecayGranule, size));
      begin = next;
    }
  });
}

/// The scalars of one update.
template <class T>
struct Scalars {
  T beta1, beta2, eps, clip_scale, learning_rate;
  T inverse_correction1, inverse_correction2;
  bool cautious;
  std::uint32_t update;  ///< its number
};

template <class T>
Scalars<T> scalars_of(const AdamWConstants& constants, const StepState& state) {
  return {T(constants.beta1),
          T(constants.beta2),
          T(constants.eps),
          T(state.clip_scale),
          T(state.input.learning_rate),
          T(1) / T(state.bias_correction1),
          T(1) / T(state.bias_correction2),
          constants.decay_rule == DecayRule::cautious,
          static_cast<std::uint32_t>(state.adam_step)};
}

/// Elements [begin, end), which share one weight decay and rate.
template <class T, class G, class M>
void update(const Spans<T, G, M>& spans, const Scalars<T>& s, T decay, Dim begin, Dim end) {
  T* master = spans.master;
  const G* gradient = spans.gradient;
  M* exp_avg = spans.exp_avg;
  M* exp_avg_sq = spans.exp_avg_sq;
  const Scalars<T> k = s;
#pragma omp simd
  for (Dim i = begin; i < end; ++i) {
    const T x = master[i];
    const T g = T(widened(gradient[i])) * k.clip_scale;
    const T m = k.beta1 * widened(exp_avg[i]) + (T(1) - k.beta1) * g;
    const T v = k.beta2 * widened(exp_avg_sq[i]) + (T(1) - k.beta2) * g * g;
    const T direction = m * k.inverse_correction1 / (std::sqrt(v * k.inverse_correction2) + k.eps);
    if constexpr (std::is_same_v<M, bf16>) {
      const auto m_bits = std::bit_cast<std::uint32_t>(m);
      const std::uint32_t random = rounding_bits(std::bit_cast<std::uint32_t>(x), m_bits, k.update);
      exp_avg[i].bits = bf16_rounded_stochastically(m_bits, random);
      exp_avg_sq[i].bits =
          bf16_rounded_stochastically(std::bit_cast<std::uint32_t>(v), random >> 16U);
    } else {
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
    }
    master[i] = x - k.learning_rate * (direction + decay_of(x, direction, decay, k.cautious));
  }
}

template <class T, class M>
void adamw_of(Context& ctx, const AdamWConstants& constants, const StepState& state,
              const UpdateOperands& operands, View exp_avg, View exp_avg_sq) {
  const View master = operands.master;
  const Scalars<T> all = scalars_of<T>(constants, state);
  with_gradient<T>(operands.gradient, [&]<class G>(const G* gradient) {
    const Spans<T, G, M> spans = {master.data<T>(), gradient, exp_avg.data<M>(),
                                  exp_avg_sq.data<M>()};
    for_equal_granules(ctx, operands, [&](const Granule& granule, Dim begin, Dim end) {
      Scalars<T> scalars = all;
      scalars.learning_rate *= T(granule.rate);
      update(spans, scalars, T(granule.decay), begin, end);
    });
  });
}

}  // namespace

std::size_t sum_of_squares_workspace(Dim count) {
  return static_cast<std::size_t>((count + kSumChunk - 1) / kSumChunk) * sizeof(SquareSum);
}

SquareSum sum_of_squares(Context& ctx, const char* op, CView x) {
  const Dim count = x.numel();
  const Dim chunks = (count + kSumChunk - 1) / kSumChunk;
  auto* partial = static_cast<SquareSum*>(ctx.workspace(op, sum_of_squares_workspace(count)));
  const auto sum_chunks = [&]<class T>(T) {
    const T* data = x.data<T>();
    parallel_chunks(ctx.threads(), chunks, kSumChunk, [=](int, Dim begin, Dim end) {
      for (Dim i = begin; i < end; ++i) {
        partial[i] = sum_chunk(data + i * kSumChunk, std::min(kSumChunk, count - i * kSumChunk));
      }
    });
  };
  if (x.dtype() == DType::bf16) {
    sum_chunks(bf16());
  } else {
    with_real(x.dtype(), op, sum_chunks);
  }
  SquareSum total;
  for (Dim i = 0; i < chunks; ++i) {
    total.squares += partial[i].squares;
    total.non_finite += partial[i].non_finite;
  }
  return total;
}

void add_norm_squared(Context& ctx, CView gradient, View sums) {
  const SquareSum sum = sum_of_squares(ctx, "add_norm_squared", gradient);
  add_to_sums(sums, kSumNormSquared, sum.squares);
  add_to_sums(sums, kSumNonFinite, sum.non_finite);
}

void adamw(Context& ctx, const AdamWConstants& constants, const StepState* state,
           const UpdateOperands& operands, View exp_avg, View exp_avg_sq) {
  if (state->skip != 0) return;
  const View master = operands.master;
  if (exp_avg.dtype() == DType::bf16) {
    adamw_of<float, bf16>(ctx, constants, *state, operands, exp_avg, exp_avg_sq);
  } else {
    with_real(master.dtype(), "adamw", [&]<class T>(T) {
      adamw_of<T, T>(ctx, constants, *state, operands, exp_avg, exp_avg_sq);
    });
  }
  if (operands.value) cast(ctx, master, operands.value);
}

void sgd(Context& ctx, float momentum, const StepState* state, const UpdateOperands& operands,
         View momentum_buffer) {
  if (state->skip != 0) return;
  const View master = operands.master;
  with_real(master.dtype(), "sgd", [&]<class T>(T) {
    T* x = master.data<T>();
    T* buffer = momentum_buffer.data<T>();
    const T clip_scale = T(state->clip_scale);
    const T learning_rate = T(state->input.learning_rate);
    with_gradient<T>(operands.gradient, [&]<class G>(const G* gradient) {
      for_equal_granules(ctx, operands, [&](const Granule& granule, Dim begin, Dim end) {
        const T decay = T(granule.decay);
#pragma omp simd
        for (Dim i = begin; i < end; ++i) {
          const T g = T(widened(gradient[i])) * clip_scale + decay * x[i];
          buffer[i] = T(momentum) * buffer[i] + g;
          x[i] -= learning_rate * buffer[i];
        }
      });
    });
  });
  if (operands.value) cast(ctx, master, operands.value);
}

}  // namespace hyperslab::ops::cpu
