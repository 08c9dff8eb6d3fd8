// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hyperslab {

/// Element types of views. f64 exists for the oracle; f16 and bf16 are storage types.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u16, u8 };

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

[[nodiscard]] std::string_view name_of(DType dtype);

/// bfloat16 as storage: the upper half of a float.
struct bf16 {
  std::uint16_t bits = 0;
};
/// IEEE binary16 as storage.
struct f16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] float to_float(bf16 value);
[[nodiscard]] float to_float(f16 value);
/// Round to nearest, ties to even; NaN stays NaN.
[[nodiscard]] bf16 to_bf16(float value);
[[nodiscard]] f16 to_f16(float value);

/// The DType of a C++ element type; only the listed types have one.
template <class T>
inline constexpr DType dtype_of = [] { static_assert(sizeof(T) == 0, "no DType"); }();
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::uint16_t> = DType::u16;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;

}  // namespace hyperslab
