// SPDX-License-Identifier: Apache-2.0
#include "images/ppm.hpp"

#include <fmt/format.h>

#include <cstring>

#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kMostValue = kMostImagePixels;

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Reads the numbers after "P6".
class Fields {
 public:
  explicit Fields(std::string_view text) : text_(text) {}

  std::int64_t number() {
    skip_blanks();
    if (at_ == text_.size() || !is_digit(text_[at_])) fail();
    std::int64_t value = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      value = value * 10 + (text_[at_] - '0');
      if (value > kMostValue) {
        fail_image(fmt::format("at most {} pixels", kMostImagePixels), "a larger number");
      }
    }
    return value;
  }
  /// Offset of the pixels.
  std::size_t end() {
    if (at_ == text_.size() || !is_blank(text_[at_])) fail();
    return at_ + 1;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (is_blank(text_[at_]) || text_[at_] == '#')) {
      if (text_[at_] == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else {
        ++at_;
      }
    }
  }
  [[noreturn]] static void fail() {
    fail_image("a PPM header: P6, width, height, largest value", "something else");
  }

  std::string_view text_;
  std::size_t at_ = 2;
};

/// The header; `begin` becomes the offset of the pixels.
ImageHeader parse(std::span<const std::byte> bytes, std::size_t& begin) {
  Fields fields(text_of(bytes));
  const std::int64_t width = fields.number();
  const std::int64_t height = fields.number();
  const std::int64_t largest = fields.number();
  if (largest != 255) fail_image("a PPM of 8 bits (largest value 255)", fmt::format("{}", largest));
  begin = fields.end();
  return {.width = static_cast<std::int32_t>(width),
          .height = static_cast<std::int32_t>(height),
          .format = ImageFormat::ppm};
}

}  // namespace

ImageHeader read_ppm_header(std::span<const std::byte> bytes) {
  std::size_t begin = 0;
  return parse(bytes, begin);
}

void decode_ppm(std::span<const std::byte> bytes, std::span<std::uint8_t> rgb) {
  std::size_t begin = 0;
  (void)parse(bytes, begin);
  if (bytes.size() - begin < rgb.size()) {
    fail_image(fmt::format("{} bytes of pixels", rgb.size()),
               fmt::format("{}", bytes.size() - begin));
  }
  std::memcpy(rgb.data(), bytes.data() + begin, rgb.size());
}

std::string ppm_header(image::ImageSize size) {
  return fmt::format("P6\n{} {}\n255\n", size.width, size.height);
}

}  // namespace hyperslab::io
