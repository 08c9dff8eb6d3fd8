// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace hyperslab::pipeline {

/// The index of a microbatch, an action or an exchange that is not there.
inline constexpr int kNone = -1;

/// Ranks, chunks, slots and microbatches are int; vectors count in std::size_t.
[[nodiscard]] constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace hyperslab::pipeline
