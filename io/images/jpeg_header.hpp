// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// The frame header of a JPEG (ITU-T T.81, B.2.2). Throws Error(data).
[[nodiscard]] ImageHeader read_jpeg_header(std::span<const std::byte> bytes);

}  // namespace hyperslab::io
