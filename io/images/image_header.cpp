// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "hyperslab/io/images.hpp"
#include "images/image_bytes.hpp"
#include "images/jpeg_header.hpp"
#include "images/png.hpp"
#include "images/ppm.hpp"

namespace hyperslab::io {
namespace {

using namespace std::string_view_literals;

ImageHeader read_header(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  if (text.empty()) fail_image("an image", "no bytes");
  if (text.starts_with("\xFF\xD8"sv)) return read_jpeg_header(bytes);
  if (text.starts_with("\x89PNG\r\n\x1A\n"sv)) return read_png_header(bytes);
  if (text.starts_with("P6"sv)) return read_ppm_header(bytes);
  std::string first;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(4, bytes.size()))) {
    first += fmt::format(" {:02x}", std::to_integer<int>(byte));
  }
  fail_image("a JPEG, PNG or PPM (P6) image", "a file that begins with the bytes" + first);
}

}  // namespace

ImageHeader read_image_header(std::span<const std::byte> bytes) {
  const ImageHeader header = read_header(bytes);
  const std::int64_t pixels = std::int64_t{header.width} * header.height;
  if (header.width < 1 || header.height < 1) {
    fail_image("an image with pixels", fmt::format("{} x {}", header.width, header.height));
  }
  if (pixels > kMostImagePixels) {
    fail_image(fmt::format("at most {} pixels", kMostImagePixels),
               fmt::format("{} x {}", header.width, header.height));
  }
  return header;
}

}  // namespace hyperslab::io
