// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common.cuh"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::ops::cuda {

/// The dropout of a kernel; the step is read from device memory.
struct DropoutMask {
  float probability = 0;
  float scale = 1;  ///< 1 / (1 - p)
  std::uint64_t key = 0;
  std::uint32_t site = 0;
  const std::int64_t* sample_position = nullptr;
  const StepState* state = nullptr;

  [[nodiscard]] __device__ std::uint32_t step() const {
    return static_cast<std::uint32_t>(state->input.step);
  }
  [[nodiscard]] __device__ float factor(std::uint32_t word) const {
    return philox_uniform(word) >= probability ? scale : 0.0F;
  }
  /// factor[i] is scale or 0 for the element of global index first + i. `together`: first is a
  /// multiple of 4, so that a Philox block serves four elements.
  template <int N>
  __device__ void factors(std::uint64_t first, bool together, float (&factor_of)[N]) const {
    if constexpr (N % 4 == 0) {
      if (together) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
          const PhiloxCounter words = block((first + i) / 4);
#pragma unroll
          for (int k = 0; k < 4; ++k) factor_of[i + k] = factor(words.x[k]);
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::uint64_t index = first + i;
      const PhiloxCounter words = block(index / 4);
      const auto lane = static_cast<unsigned>(index % 4);
      const std::uint32_t low = lane % 2 == 0 ? words.x[0] : words.x[1];
      const std::uint32_t high = lane % 2 == 0 ? words.x[2] : words.x[3];
      factor_of[i] = factor(lane < 2 ? low : high);
    }
  }

 private:
  [[nodiscard]] __device__ PhiloxCounter block(std::uint64_t index) const {
    return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                    step(), site}},
                  key);
  }
};

/// For an active dropout.
[[nodiscard]] inline DropoutMask mask_of(const Dropout& dropout) {
  return {dropout.probability,
          1.0F / (1.0F - dropout.probability),
          dropout.seed ^ name_hash("dropout"),
          dropout.site,
          dropout.sample_position.data<std::int64_t>(),
          dropout.state};
}

}  // namespace hyperslab::ops::cuda
