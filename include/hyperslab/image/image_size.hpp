// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace hyperslab::image {

/// In pixels.
struct ImageSize {
  std::int32_t width = 0, height = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

}  // namespace hyperslab::image
