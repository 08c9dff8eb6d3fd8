// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "../backend.hpp"
#include "../fp8_scale.hpp"
#include "amax.hpp"
#include "gemm.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

struct Fp8Fields {
  int fraction_bits;
  int bias;
  std::uint8_t largest_bits;
};
constexpr Fp8Fields fields_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? Fp8Fields{3, 7, 0x7E} : Fp8Fields{2, 15, 0x7B};
}
constexpr std::uint8_t kNan = 0x7F;  // a NaN in both formats

/// Rounds to nearest even; values beyond the largest one become that.
std::uint8_t encode(Fp8Format format, float value) {
  if (std::isnan(value)) return kNan;
  const auto [fraction, bias, largest_bits] = fields_of(format);
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::abs(value);
  if (magnitude >= largest_value(format)) return static_cast<std::uint8_t>(sign | largest_bits);
  if (magnitude < std::ldexp(1.0F, 1 - bias)) {  // subnormal, or rounds up to the first normal one
    const float steps = std::nearbyint(std::ldexp(magnitude, bias - 1 + fraction));
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(steps));
  }
  const int dropped = 23 - fraction;
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t half = (1U << (dropped - 1)) - 1 + ((bits >> dropped) & 1U);
  const std::uint32_t rounded =
      ((bits + half) >> dropped) - (static_cast<std::uint32_t>(127 - bias) << fraction);
  return static_cast<std::uint8_t>(sign | std::min<std::uint32_t>(rounded, largest_bits));
}

float decode(Fp8Format format, std::uint8_t bits) {
  const auto [fraction, bias, largest_bits] = fields_of(format);
  const int magnitude = bits & 0x7F;
  if (magnitude > largest_bits) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = magnitude >> fraction;
  const int rest = magnitude & ((1 << fraction) - 1);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(rest), 1 - bias - fraction)
                                    : std::ldexp(static_cast<float>(rest + (1 << fraction)),
                                                 exponent - bias - fraction);
  return (bits & 0x80) != 0 ? -value : value;
}

std::array<float, 256> reals_of(Fp8Format format) {
  std::array<float, 256> reals{};
  for (std::size_t bits = 0; bits < reals.size(); ++bits) {
    reals[bits] = decode(format, static_cast<std::uint8_t>(bits));
  }
  return reals;
}

float widened(float value) { return value; }
template <class T>
float widened(T value) {
  return to_float(value);
}

/// Elements of x as floats: of row `row` of the matrix that is quantized, with zeros beyond.
template <class T>
struct Source {
  const T* x;
  Dim rows, columns;
  bool transposed;
  [[nodiscard]] float at(Dim row, Dim k) const {
    if (!transposed) return row < rows ? widened(x[row * columns + k]) : 0.0F;
    return k < rows ? widened(x[k * columns + row]) : 0.0F;
  }
};

/// The index of the scale of an element.
struct ScaleIndex {
  Fp8Scaling scaling;
  Dim stride;  ///< from row to row of scales
  template <class AnyView>
  explicit ScaleIndex(const BasicFp8Matrix<AnyView>& matrix)
      : scaling(matrix.scaling), stride(matrix.scales.shape().back()) {}
  [[nodiscard]] Dim of(Dim row, Dim k) const {
    switch (scaling) {
      case Fp8Scaling::tensor: return 0;
      case Fp8Scaling::row: return row;
      case Fp8Scaling::group: return k / kFp8Group * stride + row;
      case Fp8Scaling::block: return row / kFp8Group * stride + k / kFp8Group;
    }
    return 0;
  }
};

/// Rows [row, row_end) by columns [k, k_end).
struct Part {
  Dim row, row_end, k, k_end;
};

/// FP8 values that share a scale, and the scale.
template <class T>
void quantize_part(const Source<T>& source, const Part& part, const Fp8Matrix& out) {
  float most = 0;
  for (Dim m = part.row; m < part.row_end; ++m) {
    for (Dim k = part.k; k < part.k_end; ++k)
      most = larger_magnitude(most, std::abs(source.at(m, k)));
  }
  out.scales.data<float>()[ScaleIndex(out).of(part.row, part.k)] =
      fp8_scale(most, largest_value(out.format));
  const float inverse = fp8_inverse(most, largest_value(out.format));
  const Dim K = out.values.shape()[1];
  for (Dim m = part.row; m < part.row_end; ++m) {
    std::uint8_t* const values = out.values.data<std::uint8_t>() + m * K;
    for (Dim k = part.k; k < part.k_end; ++k) {
      values[k] = encode(out.format, source.at(m, k) * inverse);
    }
  }
}

template <class T>
void quantize_groups(Context& ctx, const Source<T>& source, const Fp8Matrix& out) {
  const auto [M, K] = out.values.dims<2>("fp8_quantize values");
  const Dim height = out.scaling == Fp8Scaling::block ? kFp8Group : 1;
  std::fill_n(out.scales.data<float>(), out.scales.numel(), 0.0F);  // padding of the rows stays 0
  parallel_chunks(
      ctx.threads(), (M + height - 1) / height, height * K,
      [&, M = M, K = K](int, Dim begin, Dim end) {
        for (Dim m = begin * height; m < std::min(M, end * height); m += height) {
          for (Dim k = 0; k < K; k += kFp8Group) {
            quantize_part(source, {m, std::min(M, m + height), k, std::min(K, k + kFp8Group)}, out);
          }
        }
      });
}

template <class T>
void quantize_one(Context& ctx, const Source<T>& source, const Fp8Matrix& out, Fp8Amax known) {
  if (has_groups(out.scaling)) return quantize_groups(ctx, source, out);
  const auto [M, K] = out.values.dims<2>("fp8_quantize values");
  const bool per_row = out.scaling == Fp8Scaling::row;
  float* const amax = out.amax.data<float>();
  float* const scales = out.scales.data<float>();
  std::vector<float> of_rows(static_cast<std::size_t>(M));
  if (known == Fp8Amax::given) {
    std::ranges::fill(of_rows, amax[0]);
  } else {
    parallel_chunks(ctx.threads(), M, K, [&, K = K](int, Dim begin, Dim end) {
      for (Dim m = begin; m < end; ++m) {
        float most = 0;
        for (Dim k = 0; k < K; ++k) most = larger_magnitude(most, std::abs(source.at(m, k)));
        of_rows[static_cast<std::size_t>(m)] = most;
      }
    });
  }
  if (!per_row) {
    const float most = std::accumulate(of_rows.begin(), of_rows.end(), 0.0F, larger_magnitude);
    std::ranges::fill(of_rows, most);
  }
  for (Dim m = 0; m < (per_row ? M : 1); ++m) {
    amax[m] = of_rows[static_cast<std::size_t>(m)];
    scales[m] = fp8_scale(amax[m], largest_value(out.format));
  }
  std::uint8_t* const values = out.values.data<std::uint8_t>();
  parallel_chunks(ctx.threads(), M, K, [&, K = K](int, Dim begin, Dim end) {
    for (Dim m = begin; m < end; ++m) {
      const float inverse =
          fp8_inverse(of_rows[static_cast<std::size_t>(m)], largest_value(out.format));
      for (Dim k = 0; k < K; ++k) {
        values[m * K + k] = encode(out.format, source.at(m, k) * inverse);
      }
    }
  });
}

constexpr Dim kRows = 64;
constexpr Dim kColumns = 64;
constexpr Dim kDepth = 256;

struct Operand8 {
  const std::uint8_t* values;
  Dim K;
  std::array<float, 256> reals;
  const float* scales;
  ScaleIndex index;
  [[nodiscard]] float scale(Dim row, Dim k) const { return scales[index.of(row, k)]; }
  /// FP8 values [first, first + count) x [k, k + depth) as floats, rows of kDepth.
  void widen(Dim first, Dim count, Dim k, Dim depth, float* to) const {
    for (Dim row = 0; row < count; ++row) {
      const std::uint8_t* const from = values + (first + row) * K + k;
      for (Dim i = 0; i < depth; ++i) to[row * kDepth + i] = reals[from[i]];
    }
  }
};

/// The tiles of one thread.
struct Tiles {
  std::array<float, kRows * kDepth> a;
  std::array<float, kColumns * kDepth> b;
  std::array<float, kRows * kColumns> part;
  std::array<float, kRows * kColumns> c;
};

Operand8 operand_of(const CFp8Matrix& matrix) {
  return {matrix.values.data<std::uint8_t>(), matrix.values.shape()[1], reals_of(matrix.format),
          matrix.scales.data<float>(), ScaleIndex(matrix)};
}

/// The products of the matrices' elements: rows from m, columns from n of c. The FP8 values of
/// groups are multiplied and summed, and these sums scaled and summed, as GPUs do.
void sum_groups(const Operand8& a, const Operand8& b, GemmSize tile, Dim m, Dim n, Tiles& tiles) {
  tiles.c.fill(0);
  for (Dim k = 0; k < a.K; k += kFp8Group) {
    const Dim depth = std::min(kFp8Group, a.K - k);
    a.widen(m, tile.M, k, depth, tiles.a.data());
    b.widen(n, tile.N, k, depth, tiles.b.data());
    gemm<float>({tile.M, tile.N, depth}, 1, {tiles.a.data(), kDepth},
                {tiles.b.data(), kDepth, Trans::yes}, {tiles.part.data(), kColumns, 0.F});
    for (Dim i = 0; i < tile.M; ++i) {
      for (Dim j = 0; j < tile.N; ++j) {
        const auto at = static_cast<std::size_t>(i * kColumns + j);
        tiles.c[at] += tiles.part[at] * (a.scale(m + i, k) * b.scale(n + j, k));
      }
    }
  }
}

/// The products of the matrices' elements: rows from m, columns from n of c.
void sum_tile(const Operand8& a, const Operand8& b, GemmSize tile, Dim m, Dim n, Tiles& tiles) {
  if (has_groups(a.index.scaling)) return sum_groups(a, b, tile, m, n, tiles);
  for (Dim k = 0; k < a.K; k += kDepth) {
    const Dim depth = std::min(kDepth, a.K - k);
    a.widen(m, tile.M, k, depth, tiles.a.data());
    b.widen(n, tile.N, k, depth, tiles.b.data());
    gemm<float>({tile.M, tile.N, depth}, 1, {tiles.a.data(), kDepth},
                {tiles.b.data(), kDepth, Trans::yes},
                {tiles.c.data(), kColumns, k == 0 ? 0.F : 1.F});
  }
  for (Dim i = 0; i < tile.M; ++i) {
    for (Dim j = 0; j < tile.N; ++j) {
      tiles.c[static_cast<std::size_t>(i * kColumns + j)] *= a.scale(m + i, 0) * b.scale(n + j, 0);
    }
  }
}

}  // namespace

void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Amax amax) {
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  with_floating(x.dtype(), "fp8_quantize", [&, rows = rows, columns = columns]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {
      throw Error(ExitCode::internal, "fp8_quantize: not for f64");
    } else {
      if (straight.values) {
        quantize_one<T>(ctx, {x.data<T>(), rows, columns, false}, straight, amax);
      }
      if (transposed.values) {
        Fp8Matrix turned = transposed;
        if (amax == Fp8Amax::given && straight.values) turned.amax = straight.amax;
        quantize_one<T>(ctx, {x.data<T>(), rows, columns, true}, turned, amax);
      }
    }
  });
}

void fp8_amax(Context& ctx, CView x, View amax) {
  amax.data<float>()[0] = amax_of(ctx.threads(), x);
}

void fp8_scales(Context& /*ctx*/, Fp8Format format, CView amax, View scales) {
  const auto scale = [&](float of_one) { return fp8_scale(of_one, largest_value(format)); };
  std::transform(amax.data<float>(), amax.data<float>() + amax.numel(), scales.data<float>(),
                 scale);
}

void fp8_transpose(Context& ctx, CView values, View transposed) {
  const auto [rows, columns] = values.dims<2>("fp8_transpose values");
  const Dim width = transposed.shape()[1];
  const std::uint8_t* const from = values.data<std::uint8_t>();
  std::uint8_t* const to = transposed.data<std::uint8_t>();
  constexpr Dim kLines = 64;  // rows of the transpose filled together, each read a line of memory
  parallel_chunks(ctx.threads(), (columns + kLines - 1) / kLines, kLines * width,
                  [&, rows = rows, columns = columns](int, Dim begin, Dim end) {
                    for (Dim first = begin * kLines; first < end * kLines; first += kLines) {
                      const Dim last = std::min(columns, first + kLines);
                      for (Dim m = 0; m < width; ++m) {
                        for (Dim k = first; k < last; ++k) {
                          to[k * width + m] = m < rows ? from[m * columns + k] : std::uint8_t{0};
                        }
                      }
                    }
                  });
}

void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias,
                Fp8Sums /*sums*/, Accumulate accumulate, View c) {
  const auto [M, N] = c.dims<2>("fp8_matmul c");
  const Operand8 left = operand_of(a);
  const Operand8 right = operand_of(b);
  with_floating(c.dtype(), "fp8_matmul", [&, M = M, N = N]<class T>(T) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      const T* const offsets = optional_data<T>(bias);
      const auto write = [&](Dim m, Dim n, float sum) {
        T& out = c.data<T>()[m * N + n];
        float value = offsets != nullptr ? sum + widened(offsets[n]) : sum;
        if (accumulate == Accumulate::yes) value += widened(out);
        if constexpr (std::is_same_v<T, float>) {
          out = value;
        } else {
          out = to_bf16(value);
        }
      };
      const Dim strips = (M + kRows - 1) / kRows;
      parallel_chunks(
          ctx.threads(), strips, work_of_calls(kRows * N), [&](int, Dim begin, Dim end) {
            thread_local Tiles tiles;
            for (Dim strip = begin; strip < end; ++strip) {
              const Dim m = strip * kRows;
              for (Dim n = 0; n < N; n += kColumns) {
                const GemmSize tile = {std::min(kRows, M - m), std::min(kColumns, N - n), kDepth};
                sum_tile(left, right, tile, m, n, tiles);
                for (Dim i = 0; i < tile.M; ++i) {
                  for (Dim j = 0; j < tile.N; ++j) {
                    write(m + i, n + j, tiles.c[static_cast<std::size_t>(i * kColumns + j)]);
                  }
                }
              }
            }
          });
    }
  });
}

}  // namespace hyperslab::ops::cpu
