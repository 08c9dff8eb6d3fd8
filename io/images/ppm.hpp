// SPDX-License-Identifier: Apache-2.0
// Netpbm's PPM in its binary form: "P6", width, height, largest value, one blank, RGB bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// Throws Error(data), also if a largest value other than 255 stands there.
[[nodiscard]] ImageHeader read_ppm_header(std::span<const std::byte> bytes);
/// rgb: (height, width, 3). Throws Error(data).
void decode_ppm(std::span<const std::byte> bytes, std::span<std::uint8_t> rgb);
/// Header of a PPM of this size; the pixels follow it.
[[nodiscard]] std::string ppm_header(image::ImageSize size);

}  // namespace hyperslab::io
