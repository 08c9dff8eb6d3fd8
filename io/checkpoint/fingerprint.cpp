// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdint>
#include <vector>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {
namespace {

constexpr std::string_view kParameters = "model/";
constexpr Dim kRowsBytes = Dim{256} << 20;  // of a tensor in memory at a time

std::uint64_t term_of(std::span<const float> values, std::uint64_t name, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The odd multiplier of splitmix64 (Steele et al. 2014) spreads positions over all bits.
    const std::uint64_t place = (name + (first + i) * 0x9E3779B97F4A7C15ULL) | 1U;
    sum += (std::uint64_t{std::bit_cast<std::uint32_t>(values[i])} + 1) * place;
  }
  return sum;
}

std::uint64_t term_of(const CheckpointReader& reader, const std::string& tensor,
                      const Shape& shape) {
  const std::uint64_t name = name_hash(tensor);
  const Dim inner = shape.rank() == 0 ? 1 : shape.numel() / std::max<Dim>(1, shape[0]);
  const Dim all = shape.rank() == 0 ? 1 : shape[0];
  const Dim rows = std::max<Dim>(1, kRowsBytes / 4 / std::max<Dim>(1, inner));
  std::vector<float> values;
  std::uint64_t sum = 0;
  for (Dim row = 0; row < all; row += rows) {
    const Hyperslab part = Hyperslab::whole(shape).narrow(0, row, std::min(rows, all - row));
    values.resize(static_cast<std::size_t>(part.numel()));
    const View data(values.data(), DType::f32, Device::cpu, part.count);
    const SlabTarget target = {tensor, shape, part, data};
    reader.read({&target, 1});
    sum += term_of(values, name, static_cast<std::uint64_t>(row * inner));
  }
  return sum;
}

}  // namespace

std::uint64_t parameter_fingerprint(const CheckpointReader& reader, int part, int parts) {
  std::uint64_t sum = 0;
  int next = 0;
  for (const auto& [tensor, entry] : reader.tensors()) {
    if (!tensor.starts_with(kParameters) || next++ % parts != part) continue;
    sum += term_of(reader, tensor, entry.global_shape);
  }
  return sum;
}

}  // namespace hyperslab::io
