// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::image {

/// Pixels of an image.
struct ImageSize {
  std::int32_t width = 0;
  std::int32_t height = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

}  // namespace hyperslab::image
