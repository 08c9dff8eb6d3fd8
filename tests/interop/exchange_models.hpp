// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

/// Two layers of either family, as a deck resolves them.
inline model::ModelSpec small(model::Family family) {
  model::ModelSpec spec = model::preset(family);
  spec.layers = 2;
  spec.width = 8;
  spec.heads = 4;
  spec.kv_heads = family == model::Family::gpt2 ? 4 : 2;
  spec.ffn_width = 12;
  spec.vocabulary = 20;
  spec.context = 6;
  spec.embedding_scale = 1;
  return spec;
}

}  // namespace hyperslab::interop
