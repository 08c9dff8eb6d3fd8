// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "../checks.hpp"
#include "parallel.hpp"
#include "quantized_codes.hpp"
#include "quantized_linear.hpp"

namespace hyperslab::ops::cpu {
namespace {

constexpr Dim kBlock = kPanels * kPanelRows;  // weight rows that a thread multiplies with at once
constexpr Dim kLine = 64;                     // bytes of a cache line

Dim columns_of(Dim K) { return round_up(K, kColumnStep); }

/// An odd number of cache lines, so that the same column of many rows does not fall into the same
/// few sets of a cache.
Dim pitch_of(Dim K) {
  const Dim lines = columns_of(K) / kLine;
  return (lines | 1) * kLine;
}

/// The layout of the workspace, in bytes; every part begins at a cache line.
struct Layout {
  Dim scales;
  Dim sums;
  Dim panels;
  Dim panel_bytes;  ///< size of each thread's panels
  Dim total;
};

Layout layout_of(int threads, Dim rows, Dim K) {
  Layout out{};
  out.scales = round_up(rows, kTileRows) * pitch_of(K);
  out.sums = out.scales + round_up(rows * 4, kLine);
  out.panels = out.sums + round_up(rows * 4, kLine);
  out.panel_bytes = kBlock * columns_of(K);
  out.total = out.panels + threads * out.panel_bytes;
  return out;
}

template <class T>
struct Problem {
  Dim rows;
  Dim M;
  Dim K;
  Int8Rows x;
  const float* x_scales;
  const std::uint8_t* weights;
  const float* weight_scales;
  const T* bias;
  T* y;
};

/// Codes of values by division; returns their sum.
template <class T>
std::int32_t round_by_division(const T* x, Dim count, float scale, std::int8_t* codes) {
  std::int32_t sum = 0;
  for (Dim i = 0; i < count; ++i) {
    const int code = code_of<WeightFormat::int8>(to_single(x[i]), scale);
    codes[i] = static_cast<std::int8_t>(code);
    sum += code;
  }
  return sum;
}

/// Finds the same codes by the inverse of the scale, many times faster. Its products are within
/// 3e-5 of the quotients; where one is nearer to the middle of two codes than 1e-4, all are
/// divided.
template <class T>
[[gnu::always_inline]] inline std::int32_t round_by_inverse(const T* x, Dim count, float scale,
                                                            std::int8_t* codes) {
  const float inverse = 1.0F / scale;
  std::int32_t sum = 0;
  int unsure = 0;
  for (Dim i = 0; i < count; ++i) {
    const float quotient = to_single(x[i]) * inverse;
    const float code = nearest(quotient);
    unsure |= std::fabs(quotient - code) > 0.4999F ? 1 : 0;
    codes[i] = static_cast<std::int8_t>(static_cast<int>(code));
    sum += static_cast<int>(code);
  }
  return unsure == 0 ? sum : round_by_division(x, count, scale, codes);
}

/// Rounds one row of activations; returns the sum of its codes.
template <class T>
std::int32_t round_row(const T* x, Dim K, Dim pitch, float& scale, std::int8_t* codes) {
  scale = amax_of(x, K) / kMostCode<WeightFormat::int8>;
  std::fill(codes + K, codes + pitch, std::int8_t{0});
  if (!divides(scale)) {
    std::fill_n(codes, K, std::int8_t{0});
    return 0;
  }
  const bool inverse_is_precise = scale > 0x1p-100F && scale < 0x1p100F;
  if (!inverse_is_precise) return round_by_division(x, K, scale, codes);
  std::int32_t sum = 0;
  Dim k = 0;
  for (; k + kColumnStep <= K; k += kColumnStep) {
    sum += round_by_inverse(x + k, kColumnStep, scale, codes + k);
  }
  return sum + round_by_inverse(x + k, K - k, scale, codes + k);
}

/// Weight rows from `column`, and where their sums are.
struct SumBlock {
  const std::int32_t* sums;
  Dim pitch;
  Dim row;
  Dim rows;
  Dim column;
  Dim columns;
};

/// y = sum * row_scale * weight_scale + bias, in this order.
template <class T>
void finish(const Problem<T>& p, const SumBlock& block) {
  const float* weight_scales = p.weight_scales + block.column;
  for (Dim row = 0; row < block.rows; ++row) {
    const std::int32_t* sums = block.sums + row * block.pitch;
    const float row_scale = p.x_scales[block.row + row];
    T* y = p.y + (block.row + row) * p.M + block.column;
    if (p.bias == nullptr) {
      for (Dim i = 0; i < block.columns; ++i) {
        y[i] = static_cast<T>(static_cast<float>(sums[i]) * row_scale * weight_scales[i]);
      }
    } else {
      const T* bias = p.bias + block.column;
      for (Dim i = 0; i < block.columns; ++i) {
        y[i] = static_cast<T>(static_cast<float>(sums[i]) * row_scale * weight_scales[i] +
                              to_single(bias[i]));
      }
    }
  }
}

Int8Rows rows_from(const Int8Rows& x, Dim row) {
  return {x.codes + row * x.pitch, x.pitch, x.columns, x.sums + row};
}

/// Weight rows [begin, end), read as they are stored.
template <class T>
void multiply_stored(const Int8Kernels& kernels, const Problem<T>& p, Dim begin, Dim end) {
  alignas(64) std::array<std::int32_t, kBlock * 4> sums;
  for (Dim first = begin; first < end; first += kBlock) {
    const Dim columns = std::min(kBlock, end - first);
    for (Dim row = 0; row < p.rows; row += kernels.rows) {
      const Dim rows = std::min<Dim>(kernels.rows, p.rows - row);
      for (Dim i = 0; i < columns;) {
        const int step = columns - i >= 4 ? 4 : 1;
        kernels.dots(static_cast<int>(rows), step, rows_from(p.x, row),
                     {p.weights + (first + i) * p.K, p.K}, sums.data() + i, kBlock);
        i += step;
      }
      finish(p, {sums.data(), kBlock, row, rows, first, columns});
    }
  }
}

/// Weight rows [begin, end), packed block by block.
template <class T>
void multiply_packed(const Int8Kernels& kernels, const Problem<T>& p, Dim begin, Dim end,
                     std::uint8_t* panels) {
  alignas(64) std::array<std::int32_t, kBlock * kRowBlock> sums;
  for (Dim first = begin; first < end; first += kBlock) {
    const Dim columns = std::min(kBlock, end - first);
    kernels.pack({p.weights + first * p.K, p.K}, columns, panels);
    for (Dim row = 0; row < p.rows; row += kRowBlock) {
      const Dim rows = std::min(kRowBlock, p.rows - row);
      kernels.panel_sums(rows, round_up(columns, kPanelRows) / kPanelRows, rows_from(p.x, row),
                         panels, sums.data(), kBlock);
      finish(p, {sums.data(), kBlock, row, rows, first, columns});
    }
  }
}

template <class T>
void multiply(int threads, const Int8Kernels& kernels, const Problem<T>& p, std::uint8_t* panels,
              Dim panel_bytes) {
  const bool packed = kernels.packed_rows > 0 && p.rows >= kernels.packed_rows;
  const Dim units = (p.M + kPanelRows - 1) / kPanelRows;
  parallel_chunks(threads, units, work_of_products(kPanelRows * p.K * p.rows),
                  [&](int chunk, Dim begin, Dim end) {
                    const Dim first = begin * kPanelRows;
                    const Dim last = std::min(end * kPanelRows, p.M);
                    if (packed) {
                      multiply_packed(kernels, p, first, last, panels + chunk * panel_bytes);
                    } else {
                      multiply_stored(kernels, p, first, last);
                    }
                  });
}

}  // namespace

std::size_t int8_linear_workspace(int threads, Dim rows, Dim K) {
  return static_cast<std::size_t>(layout_of(threads, rows, K).total);
}

void int8_linear(Context& ctx, InstructionSet set, const QuantizedLinear& operands) {
  // No structured binding: Clang 16 cannot capture one in a region of OpenMP.
  const auto& x = operands.x;
  const auto& weight = operands.weight;
  with_real(x.dtype(), "quantized_linear_forward", [&]<class T>(T) {
    const Dim rows = leading(x.shape());
    const Dim M = weight.shape[0];
    const Dim K = weight.shape[1];
    const int threads = ctx.threads();
    const Layout layout = layout_of(threads, rows, K);
    auto* scratch = static_cast<std::uint8_t*>(
        ctx.workspace("quantized_linear_forward", static_cast<std::size_t>(layout.total)));
    auto* codes = reinterpret_cast<std::int8_t*>(scratch);
    auto* scales = reinterpret_cast<float*>(scratch + layout.scales);
    auto* sums = reinterpret_cast<std::int32_t*>(scratch + layout.sums);
    const Dim pitch = pitch_of(K);
    const T* values = x.data<T>();
    parallel_chunks(threads, rows, K, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        sums[row] = round_row(values + row * K, K, pitch, scales[row], codes + row * pitch);
      }
    });
    const Problem<T> problem = {rows,
                                M,
                                K,
                                {codes, pitch, columns_of(K), sums},
                                scales,
                                weight.codes.data<std::uint8_t>(),
                                weight.scales.data<float>(),
                                optional_data<T>(operands.bias),
                                operands.y.data<T>()};
    multiply(threads, int8_kernels(set), problem, scratch + layout.panels, layout.panel_bytes);
  });
}

}  // namespace hyperslab::ops::cpu
