// SPDX-License-Identifier: Apache-2.0
// Functions that the readers of image formats share; private to io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

/// Throws Error(data): "expected W, found F".
[[noreturn]] inline void fail_image(const std::string& expected, const std::string& found) {
  throw Error(ExitCode::data, "expected " + expected + ", found " + found);
}

[[nodiscard]] inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Big-endian numbers; all of a number's bytes must be within `bytes`.
[[nodiscard]] inline std::uint32_t byte_at(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<std::uint32_t>(bytes[at]);
}
[[nodiscard]] inline std::uint32_t big_endian_16(std::span<const std::byte> bytes, std::size_t at) {
  return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1);
}
[[nodiscard]] inline std::uint32_t big_endian_32(std::span<const std::byte> bytes, std::size_t at) {
  return big_endian_16(bytes, at) << 16 | big_endian_16(bytes, at + 2);
}

}  // namespace hyperslab::io
