// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "hyperslab/core/dtype.hpp"

namespace hyperslab::comm {

/// Bytes that one thread adds at a time: sums are of multiples of it, at multiples of it.
inline constexpr std::size_t kSumBytes = 16;
/// Whether add_peer_terms() knows the type: f32, bf16, f16.
[[nodiscard]] bool adds_peer_terms(DType dtype);

/// The terms of a sum: this member's and the other's, and a flag that is set to 0.
struct PeerTerms {
  const std::byte* own = nullptr;
  const std::byte* theirs = nullptr;
  std::uint32_t* flag = nullptr;
};

/// out = own + theirs in fp32, rounded once; `own` may be `out`.
[[nodiscard]] cudaError_t add_peer_terms(cudaStream_t stream, DType dtype, const PeerTerms& terms,
                                         std::byte* out, std::size_t bytes);

}  // namespace hyperslab::comm
