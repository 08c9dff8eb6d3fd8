// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/tensors.hpp"

namespace hyperslab::test {

/// (B, T) i32: the first token of every token's document. Documents are `document` tokens long and
/// begin one token earlier in every sample after the first; 0: one document.
inline Tensor first_keys(Dim B, Dim T, Dim document) {
  Tensor first(Device::cpu, DType::i32, {B, T});
  for (Dim i = 0; i < B * T; ++i) {
    const Dim shift = i / T;
    const Dim begin = document == 0 ? 0 : (i % T + shift) / document * document - shift;
    first.view().data<std::int32_t>()[i] = static_cast<std::int32_t>(std::max<Dim>(0, begin));
  }
  return first;
}

}  // namespace hyperslab::test
