// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "hyperslab/core/dtype.hpp"
#include "peer_slots.hpp"

namespace hyperslab::comm {

/// The terms of a sum, by member.
struct PeerTerms {
  std::array<const std::byte*, PeerSlots::kMostMembers> terms;
  /// Set to 0; null for the member itself.
  std::array<std::uint32_t*, PeerSlots::kMostMembers> flags;
  int count = 0;
};

/// Bytes that one thread adds at a time: sums are of multiples of it, at multiples of it.
inline constexpr std::size_t kSumBytes = 16;
/// Whether add_peer_terms() knows the type: f32, bf16, f16.
[[nodiscard]] bool adds_peer_terms(DType dtype);

/// out = terms[0] + terms[1] + ..., in fp32, rounded once; it may be one of them.
[[nodiscard]] cudaError_t add_peer_terms(cudaStream_t stream, DType dtype, const PeerTerms& terms,
                                         std::byte* out, std::size_t bytes);

}  // namespace hyperslab::comm
