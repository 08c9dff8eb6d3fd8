// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#ifdef __CUDACC__
#define HS_HOST_DEVICE __host__ __device__
#else
#define HS_HOST_DEVICE
#endif

namespace hyperslab {

struct PhiloxCounter {
  std::uint32_t x[4];
};

/// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four 32-bit
/// words as a pure function of a 128-bit counter and a 64-bit key. Equal on every device.
HS_HOST_DEVICE inline PhiloxCounter philox(PhiloxCounter counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ULL * counter.x[0];
    const std::uint64_t p1 = 0xCD9E8D57ULL * counter.x[2];
    const PhiloxCounter next = {
        {static_cast<std::uint32_t>(p1 >> 32) ^ counter.x[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ counter.x[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    counter = next;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return counter;
}

/// The counter of global element `index / 4` in the stream `stream`; the element's word is lane
/// `index % 4` of its block.
HS_HOST_DEVICE inline PhiloxCounter philox_counter(std::uint64_t block, std::uint64_t stream) {
  return {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
           static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
}

/// Uniform on [0, 1) with 24 bits.
HS_HOST_DEVICE inline float philox_uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// 64-bit FNV-1a, the stream number of a tensor's name.
[[nodiscard]] std::uint64_t name_hash(std::string_view name);

/// out[i] = std * normal of global element `first + i` of the stream `stream`; the same
/// bits on every device.
void fill_normal(float* out, std::uint64_t first, std::uint64_t count, std::uint64_t seed,
                 std::uint64_t stream, float std_deviation);

/// A keyed permutation of [0, size) without state: a 4-round Feistel network over Philox with cycle
/// walking. The same (seed, epoch, size) is the same permutation everywhere.
[[nodiscard]] std::uint64_t permuted_index(std::uint64_t index, std::uint64_t size,
                                           std::uint64_t seed, std::uint64_t epoch);

}  // namespace hyperslab
