// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/quantized.hpp"

#include "../backend.hpp"
#include "parallel.hpp"
#include "quantized_codes.hpp"

namespace hyperslab::ops::cpu {
namespace {

/// Groups whose scales are found together: all of a block scale, or one.
template <WeightFormat format>
constexpr Dim kUnit = format == WeightFormat::nf4 ? kScaleBlock : 1;

struct UnitScales {
  std::array<float, kScaleBlock> values;        ///< divisors of the groups' elements
  std::array<std::uint8_t, kScaleBlock> codes;  ///< nf4: as stored
  float block = 0;                              ///< nf4
};

/// Scales of `count` neighboring groups, as they are after being stored.
template <WeightFormat format, class T>
void find_scales(const T* weight, Dim group, Dim count, UnitScales& out) {
  if constexpr (format != WeightFormat::nf4) {
    const float scale = amax_of(weight, group) / kMostCode<format>;
    out.values[0] = format == WeightFormat::int4 ? to_float(to_f16(scale)) : scale;
  } else {
    for (Dim i = 0; i < count; ++i) out.values[i] = amax_of(weight + i * group, group);
    out.block = amax_of(out.values.data(), count) / 255.0F;
    for (Dim i = 0; i < count; ++i) {
      const float code = divides(out.block) ? nearest(out.values[i] / out.block) : 0.0F;
      out.codes[i] = static_cast<std::uint8_t>(std::min(code, 255.0F));
      out.values[i] = static_cast<float>(out.codes[i]) * out.block;
    }
  }
}

template <WeightFormat format>
void store_scales(const UnitScales& scales, Dim unit, Dim count, const QuantizedMatrix& out) {
  if constexpr (format == WeightFormat::int8) {
    out.scales.data<float>()[unit] = scales.values[0];
  } else if constexpr (format == WeightFormat::int4) {
    out.scales.data<f16>()[unit] = to_f16(scales.values[0]);
  } else {
    std::copy_n(scales.codes.data(), count, out.scales.data<std::uint8_t>() + unit * kScaleBlock);
    out.block_scales.data<float>()[unit] = scales.block;
  }
}

/// The codes of one group, as they are stored.
template <WeightFormat format, class T>
void store_codes(const T* weight, Dim group, float scale, std::uint8_t* out) {
  constexpr bool kBytes = format == WeightFormat::int8;
  if (!divides(scale)) {
    constexpr unsigned kZero = kBytes ? 0U : nibble_of<format>(kZeroCode<format>) * 0x11U;
    std::fill_n(out, kBytes ? group : group / 2, static_cast<std::uint8_t>(kZero));
  } else if constexpr (kBytes) {
    for (Dim i = 0; i < group; ++i) {
      out[i] = static_cast<std::uint8_t>(code_of<format>(to_single(weight[i]), scale));
    }
  } else {
    for (Dim i = 0; i < group / 2; ++i) {
      const int even = code_of<format>(to_single(weight[2 * i]), scale);
      const int odd = code_of<format>(to_single(weight[2 * i + 1]), scale);
      out[i] = static_cast<std::uint8_t>(nibble_of<format>(even) | (nibble_of<format>(odd) << 4U));
    }
  }
}

/// One group rounded to its codes and widened again. Zero codes times the scale also where the
/// scale is infinite or NaN, as dequantize computes them.
template <WeightFormat format, class T>
void round_group(const T* weight, Dim group, float scale, T* out) {
  const bool usable = divides(scale);
  for (Dim i = 0; i < group; ++i) {
    const int code = usable ? code_of<format>(to_single(weight[i]), scale) : kZeroCode<format>;
    out[i] = from_single<T>(level_of<format>(code) * scale);
  }
}

/// Calls body(unit, first group, number of groups) for all units, cut among the threads.
template <WeightFormat format, class Body>
void for_units(int threads, Dim groups, Dim group, Body&& body) {
  constexpr Dim kGroups = kUnit<format>;
  const Dim units = (groups + kGroups - 1) / kGroups;
  parallel_chunks(threads, units, kGroups * group, [&](int, Dim begin, Dim end) {
    for (Dim unit = begin; unit < end; ++unit) {
      body(unit, unit * kGroups, std::min(kGroups, groups - unit * kGroups));
    }
  });
}

/// Groups of a matrix of this shape; rows of int8 may be empty.
Dim groups_of(WeightFormat format, Dim group, const Shape& shape) {
  return format == WeightFormat::int8 ? shape[0] : shape.numel() / group;
}

/// Two elements for each value of a byte of codes.
template <WeightFormat format>
constexpr auto kByteLevels = [] {
  std::array<std::array<float, 2>, 256> levels{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    levels[byte] = {kNibbleLevels<format>[byte % 16], kNibbleLevels<format>[byte / 16]};
  }
  return levels;
}();

template <WeightFormat format, class T>
void widen_group(const std::uint8_t* codes, Dim group, float scale, T* out) {
  if constexpr (format == WeightFormat::int8) {
    for (Dim i = 0; i < group; ++i) {
      out[i] = from_single<T>(static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale);
    }
  } else {
    for (Dim i = 0; i < group / 2; ++i) {
      const std::array<float, 2>& levels = kByteLevels<format>[codes[i]];
      out[2 * i] = from_single<T>(levels[0] * scale);
      out[2 * i + 1] = from_single<T>(levels[1] * scale);
    }
  }
}

}  // namespace

template <class T>
void widen(const CQuantizedMatrix& weight, Dim begin, Dim end, T* out) {
  with_format(weight.format,
              [&]<WeightFormat format>(std::integral_constant<WeightFormat, format>) {
                const auto* codes = weight.codes.data<std::uint8_t>();
                const Dim group = weight.group;
                const Dim bytes = format == WeightFormat::int8 ? group : group / 2;
                for (Dim i = begin; i < end; ++i) {
                  widen_group<format>(codes + i * bytes, group, scale_of<format>(weight, i),
                                      out + (i - begin) * group);
                }
              });
}

template void widen(const CQuantizedMatrix&, Dim, Dim, bf16*);
template void widen(const CQuantizedMatrix&, Dim, Dim, f16*);
template void widen(const CQuantizedMatrix&, Dim, Dim, float*);
template void widen(const CQuantizedMatrix&, Dim, Dim, double*);

void quantize(Context& ctx, CView weight, const QuantizedMatrix& out) {
  with_format(out.format, [&]<WeightFormat format>(std::integral_constant<WeightFormat, format>) {
    with_floating(weight.dtype(), "quantize", [&]<class T>(T) {
      const Dim group = out.group;
      const Dim bytes = format == WeightFormat::int8 ? group : group / 2;
      const T* values = weight.data<T>();
      auto* codes = out.codes.data<std::uint8_t>();
      for_units<format>(ctx.threads(), groups_of(format, group, out.shape), group,
                        [&](Dim unit, Dim first, Dim count) {
                          UnitScales scales;
                          find_scales<format>(values + first * group, group, count, scales);
                          store_scales<format>(scales, unit, count, out);
                          for (Dim i = 0; i < count; ++i) {
                            store_codes<format>(values + (first + i) * group, group,
                                                scales.values[i], codes + (first + i) * bytes);
                          }
                        });
    });
  });
}

void dequantize(Context& ctx, const CQuantizedMatrix& weight, View out) {
  with_floating(out.dtype(), "dequantize", [&]<class T>(T) {
    const Dim group = weight.group;
    T* values = out.data<T>();
    parallel_chunks(
        ctx.threads(), groups_of(weight.format, group, weight.shape), group,
        [&](int, Dim begin, Dim end) { widen(weight, begin, end, values + begin * group); });
  });
}

void fake_quantize(Context& ctx, WeightFormat format_now, Dim group, CView weight, View out) {
  with_format(format_now, [&]<WeightFormat format>(std::integral_constant<WeightFormat, format>) {
    with_floating(weight.dtype(), "fake_quantize", [&]<class T>(T) {
      const T* values = weight.data<T>();
      T* rounded = out.data<T>();
      for_units<format>(ctx.threads(), groups_of(format, group, weight.shape()), group,
                        [&](Dim, Dim first, Dim count) {
                          UnitScales scales;
                          find_scales<format>(values + first * group, group, count, scales);
                          for (Dim i = 0; i < count; ++i) {
                            const Dim begin = (first + i) * group;
                            round_group<format>(values + begin, group, scales.values[i],
                                                rounded + begin);
                          }
                        });
    });
  });
}

void int8_row_scales(Context& ctx, CView weight, View scales) {
  const auto [M, K] = weight.dims<2>("int8_row_scales weight");
  auto* found = scales.data<float>();
  with_floating(weight.dtype(), "int8_row_scales", [&, K = K, M = M]<class T>(T) {
    const T* values = weight.data<T>();
    parallel_chunks(ctx.threads(), M, K, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        found[row] = amax_of(values + row * K, K) / kMostCode<WeightFormat::int8>;
      }
    });
  });
}

void quantize_scaled(Context& ctx, CView weight, const QuantizedMatrix& out) {
  const Dim M = out.shape[0];
  const Dim K = out.shape[1];
  const auto* scales = out.scales.data<float>();
  auto* codes = out.codes.data<std::uint8_t>();
  with_floating(weight.dtype(), "quantize_scaled", [&]<class T>(T) {
    const T* values = weight.data<T>();
    parallel_chunks(ctx.threads(), M, K, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        store_codes<WeightFormat::int8>(values + row * K, K, scales[row], codes + row * K);
      }
    });
  });
}

void fake_quantize_scaled(Context& ctx, CView weight, CView scales, View out) {
  const auto [M, K] = weight.dims<2>("fake_quantize_scaled weight");
  const auto* given = scales.data<float>();
  with_floating(weight.dtype(), "fake_quantize_scaled", [&, K = K, M = M]<class T>(T) {
    const T* values = weight.data<T>();
    T* rounded = out.data<T>();
    parallel_chunks(ctx.threads(), M, K, [=](int, Dim begin, Dim end) {
      for (Dim row = begin; row < end; ++row) {
        round_group<WeightFormat::int8>(values + row * K, K, given[row], rounded + row * K);
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
