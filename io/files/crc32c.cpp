// SPDX-License-Identifier: Apache-2.0
#include "files/crc32c.hpp"

#include <array>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace hyperslab::io {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[t - 1][i];
      tables[t][i] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t seed) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, next += 8) {
    crc = kTables[7][(crc ^ next[0]) & 0xFFU] ^ kTables[6][((crc >> 8) ^ next[1]) & 0xFFU] ^
          kTables[5][((crc >> 16) ^ next[2]) & 0xFFU] ^ kTables[4][(crc >> 24) ^ next[3]] ^
          kTables[3][next[4]] ^ kTables[2][next[5]] ^ kTables[1][next[6]] ^ kTables[0][next[7]];
  }
  for (; bytes > 0; --bytes, ++next) crc = (crc >> 8) ^ kTables[0][(crc ^ *next) & 0xFFU];
  return ~crc;
}

#ifdef __SSE4_2__
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t seed) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint64_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, next += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, next, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto crc32 = static_cast<std::uint32_t>(crc);
  for (; bytes > 0; --bytes, ++next) crc32 = _mm_crc32_u8(crc32, *next);
  return ~crc32;
}
#else
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t seed) {
  return crc32c_by_table(data, bytes, seed);
}
#endif

}  // namespace hyperslab::io
