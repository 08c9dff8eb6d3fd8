// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fuzz/input.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/io/safetensors.hpp"

namespace hyperslab::fuzz {

/// Opens a .safetensors file or a folder of them and reads its small tensors.
inline void read_safetensors(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 16384;
  take_or_refuse({ExitCode::checkpoint}, [&] {
    const io::SafetensorsReader reader(path);
    for (const auto& [name, entry] : reader.tensors()) {
      if (entry.bytes > kMostBytes || entry.shape.size() > kMaxRank) continue;
      Tensor memory(Device::cpu, DType::f32, Shape(std::span<const Dim>(entry.shape)));
      take_or_refuse({ExitCode::checkpoint}, [&] { reader.read(name, memory.view()); });
      take_or_refuse({ExitCode::checkpoint}, [&] { (void)reader.are_equal(name, name); });
    }
  });
}

}  // namespace hyperslab::fuzz
