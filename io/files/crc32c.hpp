// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace hyperslab::io {

/// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720, appendix B.4). `seed` is the
/// result over the bytes before these. Uses the processor's instruction if it was compiled for
/// one that has it.
[[nodiscard]] std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t seed = 0);
/// CRC-32C by tables, eight bytes at a time, on any processor.
[[nodiscard]] std::uint32_t crc32c_by_table(const void* data, std::size_t bytes,
                                            std::uint32_t seed = 0);

}  // namespace hyperslab::io
