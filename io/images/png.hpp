// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// Throws Error(data).
[[nodiscard]] ImageHeader read_png_header(std::span<const std::byte> bytes);
/// The whole image, rgb: (height, width, 3). Throws Error(data).
void decode_png(std::span<const std::byte> bytes, const ImageHeader& header,
                std::span<std::uint8_t> rgb);

}  // namespace hyperslab::io
