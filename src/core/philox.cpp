// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "hyperslab/core/philox_normal.hpp"

namespace hyperslab {

std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ULL;
  }
  return hash;
}

void fill_normal(float* out, std::uint64_t first, std::uint64_t count, std::uint64_t seed,
                 std::uint64_t stream, float std_deviation) {
  if (count == 0) return;
  const std::uint64_t last = first + count;
  const std::uint64_t first_block = first / 4;
  const auto blocks = static_cast<std::int64_t>((last + 3) / 4 - first_block);
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::uint64_t block = first_block + static_cast<std::uint64_t>(i);
    float normals[4];
    philox_normals(block, seed, stream, normals);
    for (std::uint64_t lane = 0; lane < 4; ++lane) {
      const std::uint64_t index = block * 4 + lane;
      if (index >= first && index < last) out[index - first] = std_deviation * normals[lane];
    }
  }
}

std::uint64_t permuted_index(std::uint64_t index, std::uint64_t size, std::uint64_t seed,
                             std::uint64_t epoch) {
  if (size < 2) return index;
  // The smallest even number of bits that holds `size` values: at most 4 times too many, so cycle
  // walking takes fewer than 4 rounds on average.
  const int half_bits = (std::bit_width(size - 1) + 1) / 2;
  const std::uint64_t mask = (1ULL << half_bits) - 1;
  const std::uint64_t stream = name_hash("sample order") ^ (epoch * 0x9E3779B97F4A7C15ULL);
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const PhiloxCounter words = philox(philox_counter(right | (round << 32), stream), seed);
      const std::uint64_t mixed = left ^ (words.x[0] & mask);
      left = right;
      right = mixed;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

}  // namespace hyperslab
