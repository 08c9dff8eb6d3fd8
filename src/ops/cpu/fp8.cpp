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
#include "gemm.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {
namespace {

struct Layout {
  int fraction_bits;
  int bias;
  std::uint8_t largest_code;
};
constexpr Layout layout_of(Fp8Format format) {
  return format == Fp8Format::e4m3 ? Layout{3, 7, 0x7E} : Layout{2, 15, 0x7B};
}
constexpr std::uint8_t kNan = 0x7F;  // of both formats

/// To nearest even; beyond the largest value, that.
std::uint8_t encode(Fp8Format format, float value) {
  if (std::isnan(value)) return kNan;
  const auto [fraction, bias, largest_code] = layout_of(format);
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  const float magnitude = std::abs(value);
  if (magnitude >= largest_value(format)) return static_cast<std::uint8_t>(sign | largest_code);
  if (magnitude < std::ldexp(1.0F, 1 - bias)) {  // subnormal, or rounds up to the first normal one
    const float steps = std::nearbyint(std::ldexp(magnitude, bias - 1 + fraction));
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(steps));
  }
  const int dropped = 23 - fraction;
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t half = (1U << (dropped - 1)) - 1 + ((bits >> dropped) & 1U);
  const std::uint32_t code =
      ((bits + half) >> dropped) - (static_cast<std::uint32_t>(127 - bias) << fraction);
  return static_cast<std::uint8_t>(sign | std::min<std::uint32_t>(code, largest_code));
}

float decode(Fp8Format format, std::uint8_t code) {
  const auto [fraction, bias, largest_code] = layout_of(format);
  const int magnitude = code & 0x7F;
  if (magnitude > largest_code) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = magnitude >> fraction;
  const int rest = magnitude & ((1 << fraction) - 1);
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(rest), 1 - bias - fraction)
                                    : std::ldexp(static_cast<float>(rest + (1 << fraction)),
                                                 exponent - bias - fraction);
  return (code & 0x80) != 0 ? -value : value;
}

std::array<float, 256> values_of(Fp8Format format) {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) {
    values[code] = decode(format, static_cast<std::uint8_t>(code));
  }
  return values;
}

/// The larger of two magnitudes; NaN is larger than all.
float larger(float a, float b) { return a >= b || std::isnan(a) ? a : b; }

float widened(float value) { return value; }
template <class T>
float widened(T value) {
  return to_float(value);
}

/// Elements of x as floats: those of row `row` of the matrix that is quantized.
template <class T>
struct Source {
  const T* x;
  Dim rows, columns;
  bool transposed;
  [[nodiscard]] float at(Dim row, Dim k) const {
    if (!transposed) return widened(x[row * columns + k]);
    return k < rows ? widened(x[k * columns + row]) : 0.0F;
  }
};

template <class T>
void quantize_one(Context& ctx, const Source<T>& source, const Fp8Matrix& out, Fp8Largest known) {
  const auto [M, K] = out.codes.dims<2>("fp8_quantize codes");
  const bool per_row = out.scaling == Fp8Scaling::row;
  float* const largest = out.largest.data<float>();
  float* const scales = out.scales.data<float>();
  std::vector<float> of_rows(static_cast<std::size_t>(M));
  if (known == Fp8Largest::given) {
    std::ranges::fill(of_rows, largest[0]);
  } else {
    parallel_chunks(ctx.threads(), M, K, [&, K = K](int, Dim begin, Dim end) {
      for (Dim m = begin; m < end; ++m) {
        float most = 0;
        for (Dim k = 0; k < K; ++k) most = larger(most, std::abs(source.at(m, k)));
        of_rows[static_cast<std::size_t>(m)] = most;
      }
    });
  }
  if (!per_row) {
    const float most = std::accumulate(of_rows.begin(), of_rows.end(), 0.0F, larger);
    std::ranges::fill(of_rows, most);
  }
  for (Dim m = 0; m < (per_row ? M : 1); ++m) {
    largest[m] = of_rows[static_cast<std::size_t>(m)];
    scales[m] = fp8_scale(largest[m], largest_value(out.format));
  }
  std::uint8_t* const codes = out.codes.data<std::uint8_t>();
  parallel_chunks(ctx.threads(), M, K, [&, K = K](int, Dim begin, Dim end) {
    for (Dim m = begin; m < end; ++m) {
      const float inverse =
          fp8_inverse(of_rows[static_cast<std::size_t>(m)], largest_value(out.format));
      for (Dim k = 0; k < K; ++k) {
        codes[m * K + k] = encode(out.format, source.at(m, k) * inverse);
      }
    }
  });
}

constexpr Dim kRows = 64;
constexpr Dim kColumns = 64;
constexpr Dim kDepth = 256;

/// Codes [first, first + count) x [k, k + depth) as floats, rows of kDepth.
struct Operand8 {
  const std::uint8_t* codes;
  Dim K;
  std::array<float, 256> values;
  void widen(Dim first, Dim count, Dim k, Dim depth, float* to) const {
    for (Dim row = 0; row < count; ++row) {
      const std::uint8_t* const from = codes + (first + row) * K + k;
      for (Dim i = 0; i < depth; ++i) to[row * kDepth + i] = values[from[i]];
    }
  }
};

/// The tiles of one thread.
struct Tiles {
  std::array<float, kRows * kDepth> a;
  std::array<float, kColumns * kDepth> b;
  std::array<float, kRows * kColumns> c;
};

Operand8 operand_of(const CFp8Matrix& matrix) {
  return {matrix.codes.data<std::uint8_t>(), matrix.codes.shape()[1], values_of(matrix.format)};
}

/// The sums of the codes' values: rows from m, columns from n of c.
void sum_tile(const Operand8& a, const Operand8& b, GemmSize tile, Dim m, Dim n, Tiles& tiles) {
  for (Dim k = 0; k < a.K; k += kDepth) {
    const Dim depth = std::min(kDepth, a.K - k);
    a.widen(m, tile.M, k, depth, tiles.a.data());
    b.widen(n, tile.N, k, depth, tiles.b.data());
    gemm<float>({tile.M, tile.N, depth}, 1, {tiles.a.data(), kDepth},
                {tiles.b.data(), kDepth, Trans::yes},
                {tiles.c.data(), kColumns, k == 0 ? 0.F : 1.F});
  }
}

}  // namespace

void fp8_quantize(Context& ctx, CView x, const Fp8Matrix& straight, const Fp8Matrix& transposed,
                  Fp8Largest largest) {
  const auto [rows, columns] = x.dims<2>("fp8_quantize x");
  with_floating(x.dtype(), "fp8_quantize", [&, rows = rows, columns = columns]<class T>(T) {
    if constexpr (std::is_same_v<T, double>) {
      throw Error(ExitCode::internal, "fp8_quantize: not for f64");
    } else {
      if (straight.codes) {
        quantize_one<T>(ctx, {x.data<T>(), rows, columns, false}, straight, largest);
      }
      if (transposed.codes) {
        quantize_one<T>(ctx, {x.data<T>(), rows, columns, true}, transposed, largest);
      }
    }
  });
}

void fp8_matmul(Context& ctx, const CFp8Matrix& a, const CFp8Matrix& b, CView bias,
                Fp8Sums /*sums*/, Accumulate accumulate, View c) {
  const auto [M, N] = c.dims<2>("fp8_matmul c");
  const Operand8 left = operand_of(a);
  const Operand8 right = operand_of(b);
  const float* const left_scales = a.scales.data<float>();
  const float* const right_scales = b.scales.data<float>();
  const bool per_row = a.scaling == Fp8Scaling::row;
  with_floating(c.dtype(), "fp8_matmul", [&, M = M, N = N]<class T>(T) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      const T* const offsets = optional_data<T>(bias);
      const auto write = [&](Dim m, Dim n, float sum) {
        const float scaled = sum * (left_scales[per_row ? m : 0] * right_scales[per_row ? n : 0]);
        T& out = c.data<T>()[m * N + n];
        float value = offsets != nullptr ? scaled + widened(offsets[n]) : scaled;
        if (accumulate == Accumulate::yes) value += widened(out);
        if constexpr (std::is_same_v<T, float>) {
          out = value;
        } else {
          out = to_bf16(value);
        }
      };
      const Dim strips = (M + kRows - 1) / kRows;
      parallel_chunks(ctx.threads(), strips, kRows * N, [&](int, Dim begin, Dim end) {
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
