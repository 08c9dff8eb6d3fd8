// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hyperslab::io {

/// The bytes in the order of GPT-2's ids 0 to 255: those with a visible character first.
[[nodiscard]] const std::array<std::uint8_t, 256>& byte_order();

/// GPT-2's way to write any bytes as visible text: a character for each byte (Radford et al. 2019,
/// bytes_to_unicode in encoder.py); a space becomes U+0120.
[[nodiscard]] std::string bytes_to_text(std::string_view bytes);

/// The bytes that `text` stands for; nothing if it has a character that stands for no byte.
[[nodiscard]] std::optional<std::string> text_to_bytes(std::string_view text);

}  // namespace hyperslab::io
