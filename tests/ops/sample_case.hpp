// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "hyperslab/ops/sample.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Ways to choose, each with draws spread evenly over [0, 1).
[[nodiscard]] inline std::vector<ops::TokenChoice> token_choices(int draws) {
  const std::vector<ops::TokenChoice> ways = {
      {.temperature = 0},
      {.temperature = 1},
      {.temperature = 0.3},
      {.temperature = 1e-200},
      {.temperature = 1, .top_k = 1},
      {.temperature = 5, .top_k = 7},
      {.temperature = 1, .top_p = 0.9, .top_k = 1},
      {.temperature = 5, .top_p = 0.999, .top_k = 3},
      {.temperature = 2, .top_k = 1'000'000},
      {.temperature = 1, .top_p = 0},
      {.temperature = 1, .top_p = 0.9},
      {.temperature = 1.5, .top_p = 0.5, .top_k = 40},
      {.temperature = 1, .min_p = 0.05},
      {.temperature = 0.8, .top_p = 0.95, .min_p = 0.02, .top_k = 300},
  };
  std::vector<ops::TokenChoice> out;
  for (int i = 0; i < draws; ++i) {
    const double turn = (i + 1) / std::numbers::phi;
    for (ops::TokenChoice way : ways) {
      way.draw = static_cast<std::uint64_t>((turn - std::floor(turn)) * 0x1p64);
      out.push_back(way);
    }
  }
  return out;
}

/// The operand of ops::sample.
[[nodiscard]] inline Tensor bytes_of_choices(const std::vector<ops::TokenChoice>& choices) {
  Tensor out(Device::cpu, DType::u8,
             {static_cast<Dim>(choices.size()), static_cast<Dim>(sizeof(ops::TokenChoice))});
  std::memcpy(out.view().raw(), choices.data(), out.view().bytes());
  return out;
}

}  // namespace hyperslab::test
