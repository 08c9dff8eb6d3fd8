// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"
#include "run_jobs.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;  // elements

struct Block {
  std::size_t slab = 0;
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Infinity and not-a-number are the values whose exponent has all bits set.
template <class T, class Bits>
bool all_finite(const T* data, std::size_t count, Bits exponent) {
  std::uint32_t found = 0;
#pragma omp simd reduction(| : found)
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<Bits>(data[i]);
    found |= static_cast<std::uint32_t>((bits & exponent) == exponent);
  }
  return found == 0;
}

bool all_finite(const CView& data, const Block& block) {
  if (data.dtype() == DType::f16) {
    return all_finite(data.data<f16>() + block.begin, block.count, std::uint16_t{0x7C00});
  }
  return all_finite(data.data<float>() + block.begin, block.count, std::uint32_t{0x7F800000});
}

std::vector<Block> blocks_of(std::span<const Slab> slabs) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (slabs[i].data.dtype() == DType::u8) continue;
    const auto count = static_cast<std::size_t>(slabs[i].part.count.numel());
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      blocks.push_back({i, begin, std::min(kBlock, count - begin)});
    }
  }
  return blocks;
}

/// Returns the first tensor of CPU slabs with an infinity or not-a-number, or "".
std::string first_on_host(std::span<const Slab> slabs, const SaveOptions& options) {
  const std::vector<Block> blocks = blocks_of(slabs);
  std::atomic<std::size_t> first = slabs.size();
  run_jobs(blocks.size(), options.writers, [&](std::size_t i) {
    if (!all_finite(slabs[blocks[i].slab].data, blocks[i])) {
      std::size_t known = first;
      while (blocks[i].slab < known && !first.compare_exchange_weak(known, blocks[i].slab)) {
      }
    }
    if (options.activity != nullptr) options.activity->beat();
  });
  return first < slabs.size() ? slabs[first].tensor : "";
}

}  // namespace

std::vector<std::span<const Slab>> pieces_of(std::span<const Slab> slabs, std::size_t bytes) {
  std::vector<std::span<const Slab>> pieces;
  for (std::size_t begin = 0; begin < slabs.size();) {
    std::size_t end = begin;
    std::size_t sum = 0;
    while (end < slabs.size() && (end == begin || sum + slabs[end].data.bytes() <= bytes)) {
      sum += slabs[end++].data.bytes();
    }
    pieces.push_back(slabs.subspan(begin, end - begin));
    begin = end;
  }
  return pieces;
}

std::string first_not_finite(std::span<const Slab> slabs, const SaveOptions& options) {
  if (!options.fetch) return first_on_host(slabs, options);
  for (const std::span<const Slab> piece : pieces_of(slabs, options.piece_bytes)) {
    const std::string found = first_on_host(options.fetch(piece), options);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace hyperslab::io
