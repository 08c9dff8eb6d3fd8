// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/core/recorder.hpp"

namespace hyperslab::nn {

inline constexpr Component kEmbeddingComponent = {1, "embedding"};
inline constexpr Component kAttentionComponent = {2, "attention"};
inline constexpr Component kFfnComponent = {3, "ffn"};
inline constexpr Component kNormsComponent = {4, "norms"};
inline constexpr Component kHeadComponent = {5, "head"};

}  // namespace hyperslab::nn
