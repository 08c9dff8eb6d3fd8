// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "hyperslab/core/view.hpp"

namespace hyperslab::model {

/// Tokens of a page of the key-value cache, a power of two, if a text has at most so many: few
/// enough that a text's last page wastes little, and many enough that a page's keys are neighbors.
[[nodiscard]] constexpr Dim cache_page_tokens(Dim text_tokens) {
  constexpr std::uint64_t kLeast = 16;
  constexpr std::uint64_t kMost = 64;
  const auto tokens = static_cast<std::uint64_t>(std::max<Dim>(1, text_tokens));
  return static_cast<Dim>(std::clamp(std::bit_ceil(tokens), kLeast, kMost));
}

/// Room for the keys and values of texts that are continued together.
struct CacheSize {
  Dim rows = 0;    ///< texts at most; 0: the microbatch
  Dim tokens = 0;  ///< tokens of a text at most; 0: the sequence
  Dim pages = 0;   ///< pages of all texts; 0: as many as they can need

  [[nodiscard]] Dim page_tokens() const { return cache_page_tokens(tokens); }
  [[nodiscard]] Dim pages_of_text() const { return (tokens + page_tokens() - 1) / page_tokens(); }
  /// This size with every 0 replaced by its default.
  [[nodiscard]] CacheSize resolved(Dim microbatch, Dim sequence) const {
    CacheSize out = *this;
    if (out.rows == 0) out.rows = microbatch;
    if (out.tokens == 0) out.tokens = sequence;
    if (out.pages == 0) out.pages = out.rows * out.pages_of_text();
    return out;
  }
};

}  // namespace hyperslab::model
