// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::ops::cpu {

enum class AmxProducts : std::uint8_t { int8, bf16 };

/// True if the processor has tiles and these products of them, and Linux lets this process use
/// them, which it asks for.
[[nodiscard]] bool may_use_amx(AmxProducts products);

/// The operand of _tile_loadconfig: eight tiles of up to 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace hyperslab::ops::cpu
