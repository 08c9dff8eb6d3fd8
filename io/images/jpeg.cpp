// SPDX-License-Identifier: Apache-2.0
#include "images/jpeg.hpp"

#include <fmt/format.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

constexpr int kWhole = 8;  // eighths

std::int32_t scaled(std::int32_t side, int eighths) { return (side * eighths + 7) / 8; }

image::ImageSize scaled(const ImageHeader& header, int eighths) {
  return {scaled(header.width, eighths), scaled(header.height, eighths)};
}

/// Bytes between two markers and odd numbers in a scan header change no pixel; other warnings are
/// of lost data.
bool is_harmless(std::string_view warning) {
  return warning.find("extraneous bytes before marker") != std::string_view::npos ||
         warning.find("Invalid SOS parameters") != std::string_view::npos;
}

/// (B, 4) inverted cyan, magenta, yellow, black -> (B, 3).
void cmyk_to_rgb(std::span<const std::uint8_t> cmyk, std::span<std::uint8_t> rgb) {
  for (std::size_t i = 0; i < rgb.size() / 3; ++i) {
    const std::uint32_t black = cmyk[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      rgb[3 * i + c] = static_cast<std::uint8_t>((cmyk[4 * i + c] * black + 127) / 255);
    }
  }
}

}  // namespace

void JpegDecoder::Destroy::operator()(void* handle) const { tjDestroy(handle); }

JpegDecoder::JpegDecoder() { make_handle(); }

void JpegDecoder::make_handle() {
  handle_.reset(tjInitDecompress());
  require(handle_ != nullptr, "libjpeg-turbo gave no decompressor");
}

image::ImageSize JpegDecoder::decoded_size(const ImageHeader& header, std::int32_t least_width,
                                           std::int32_t least_height) {
  for (const int eighths : {1, 2, 4}) {
    const image::ImageSize size = scaled(header, eighths);
    if (size.width >= std::min(least_width, header.width) &&
        size.height >= std::min(least_height, header.height)) {
      return size;
    }
  }
  return header.size();
}

void JpegDecoder::decompress(std::span<const std::byte> bytes, image::ImageSize size,
                             int pixel_format, std::uint8_t* out) {
  const int status =
      tjDecompress2(handle_.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), out, size.width, 0, size.height, pixel_format, TJFLAG_LIMITSCANS);
  if (status == 0) return;
  const std::string problem = tjGetErrorStr2(handle_.get());
  if (tjGetErrorCode(handle_.get()) == TJERR_WARNING && is_harmless(problem)) return;
  fail_image("a whole JPEG image", problem);
}

void JpegDecoder::decode(std::span<const std::byte> bytes, const ImageHeader& header,
                         image::ImageSize size, std::span<std::uint8_t> rgb) {
  const bool is_scale = std::ranges::any_of(
      std::array{1, 2, 4, kWhole}, [&](int eighths) { return scaled(header, eighths) == size; });
  require(is_scale, "a JPEG decoded to a size that is none of its scales");
  try {
    decode_whole(bytes, header, size, rgb);
  } catch (...) {
    make_handle();  // after damaged bytes it finds no size in the next image
    throw;
  }
}

void JpegDecoder::decode_whole(std::span<const std::byte> bytes, const ImageHeader& header,
                               image::ImageSize size, std::span<std::uint8_t> rgb) {
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(handle_.get(), reinterpret_cast<const unsigned char*>(bytes.data()),
                          bytes.size(), &width, &height, &subsampling, &colours) != 0) {
    fail_image("a whole JPEG image", tjGetErrorStr2(handle_.get()));
  }
  if (width != header.width || height != header.height) {
    fail_image(fmt::format("a JPEG of {} x {} pixels", header.width, header.height),
               fmt::format("a second frame header of {} x {}", width, height));
  }
  if (colours != TJCS_CMYK && colours != TJCS_YCCK) {
    return decompress(bytes, size, TJPF_RGB, rgb.data());
  }
  cmyk_.resize(rgb.size() / 3 * 4);
  decompress(bytes, size, TJPF_CMYK, cmyk_.data());
  cmyk_to_rgb(cmyk_, rgb);
}

}  // namespace hyperslab::io
