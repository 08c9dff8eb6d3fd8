// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "checkpoint/dtypes.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kParameters = "model/";
constexpr Dim kRowsBytes = Dim{256} << 20;  // bytes of a tensor in memory at a time

/// `Bits` are the unsigned integers as wide as an element.
template <class Bits>
std::uint64_t term_of(const std::vector<char>& bytes, std::uint64_t name, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size() / sizeof(Bits); ++i) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    // The odd multiplier of splitmix64 (Steele et al. 2014) spreads positions over all bits.
    const std::uint64_t place = (name + (first + i) * 0x9E3779B97F4A7C15ULL) | 1U;
    sum += (std::uint64_t{bits} + 1) * place;
  }
  return sum;
}

std::uint64_t term_of(const std::vector<char>& bytes, DType dtype, std::uint64_t name,
                      std::uint64_t first) {
  switch (size_of(dtype)) {
    case 1: return term_of<std::uint8_t>(bytes, name, first);
    case 2: return term_of<std::uint16_t>(bytes, name, first);
    default: return term_of<std::uint32_t>(bytes, name, first);
  }
}

std::uint64_t term_of(const CheckpointReader& reader, const std::string& tensor,
                      const CheckpointReader::TensorEntry& entry) {
  const Shape& shape = entry.global_shape;
  const auto size = static_cast<Dim>(size_of(entry.dtype));
  const std::uint64_t name = name_hash(tensor);
  const Dim inner = shape.rank() == 0 ? 1 : shape.numel() / std::max<Dim>(1, shape[0]);
  const Dim all = shape.rank() == 0 ? 1 : shape[0];
  const Dim rows = std::max<Dim>(1, kRowsBytes / size / std::max<Dim>(1, inner));
  std::vector<char> bytes;
  std::uint64_t sum = 0;
  for (Dim row = 0; row < all; row += rows) {
    const Hyperslab part = Hyperslab::whole(shape).narrow(0, row, std::min(rows, all - row));
    bytes.resize(bytes_of_part(part, entry.dtype));
    const View data(bytes.data(), entry.dtype, Device::cpu, part.count);
    const SlabTarget target = {tensor, shape, part, data};
    reader.read({&target, 1});
    sum += term_of(bytes, entry.dtype, name, static_cast<std::uint64_t>(row * inner));
  }
  return sum;
}

}  // namespace

std::uint64_t parameter_fingerprint(const CheckpointReader& reader, int part, int parts) {
  std::uint64_t sum = 0;
  int next = 0;
  for (const auto& [tensor, entry] : reader.tensors()) {
    if (!tensor.starts_with(kParameters) || next++ % parts != part) continue;
    sum += term_of(reader, tensor, entry);
  }
  return sum;
}

}  // namespace hyperslab::io
