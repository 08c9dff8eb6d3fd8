// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/byte_text.hpp"

namespace hyperslab::io {
namespace {

constexpr std::uint32_t kFirstInvisible = 256;  ///< code points of bytes without a visible one
constexpr std::uint32_t kEnd = kFirstInvisible + 68;

constexpr bool is_visible(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Tables {
  std::array<std::uint8_t, 256> order{};
  std::array<std::uint16_t, 256> code_of{};
  std::array<std::int16_t, kEnd> byte_of{};
};

constexpr Tables make_tables() {
  Tables tables;
  tables.byte_of.fill(-1);
  std::size_t id = 0;
  std::uint16_t invisible = kFirstInvisible;
  for (const bool visible : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_visible(byte) != visible) continue;
      const auto code = visible ? static_cast<std::uint16_t>(byte) : invisible++;
      tables.order[id++] = static_cast<std::uint8_t>(byte);
      tables.code_of[static_cast<std::size_t>(byte)] = code;
      tables.byte_of[code] = static_cast<std::int16_t>(byte);
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

const std::array<std::uint8_t, 256>& byte_order() { return kTables.order; }

std::string bytes_to_text(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const std::uint16_t code = kTables.code_of[static_cast<unsigned char>(byte)];
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

std::optional<std::string> text_to_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint32_t code = static_cast<unsigned char>(text[i]);
    if (code >= 0x80) {  // all characters of the table have at most two bytes
      if ((code & 0xE0) != 0xC0 || ++i == text.size()) return std::nullopt;
      code = ((code & 0x1F) << 6) | (static_cast<unsigned char>(text[i]) & 0x3F);
    }
    if (code >= kEnd || kTables.byte_of[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kTables.byte_of[code]);
  }
  return bytes;
}

}  // namespace hyperslab::io
