// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fuzz/input.hpp"
#include "hyperslab/io/images.hpp"

namespace hyperslab::fuzz {

/// Opens the images at a path and looks at each.
inline void read_image_set(const std::string& path) {
  take_or_refuse({ExitCode::data}, [&] {
    const auto set = io::open_images({path}, {.classes = 2, .size = 8, .seed = 1});
    std::size_t sum = 0;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      sum += set->name(i).size();
      for (const std::byte byte : set->bytes(i)) sum += std::to_integer<std::size_t>(byte);
      if (set->label(i) < 0 || set->label(i) > 1) std::abort();
    }
    if (set->fingerprint() == sum) std::fprintf(stderr, "%zu\n", sum);
    (void)set->files();
    set->require_unchanged();
  });
}

}  // namespace hyperslab::fuzz
