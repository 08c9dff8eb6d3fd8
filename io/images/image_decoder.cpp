// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/images.hpp"
#include "images/image_bytes.hpp"
#include "images/jpeg.hpp"
#include "images/png.hpp"
#include "images/ppm.hpp"

namespace hyperslab::io {

struct ImageDecoder::State {
  JpegDecoder jpeg;
};

ImageDecoder::ImageDecoder() : state_(std::make_unique<State>()) {}
ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

image::ImageSize ImageDecoder::decoded_size(const ImageHeader& header, std::int32_t least_width,
                                            std::int32_t least_height) const {
  if (header.format != ImageFormat::jpeg) return header.size();
  return JpegDecoder::decoded_size(header, least_width, least_height);
}

void ImageDecoder::decode(std::span<const std::byte> bytes, const ImageHeader& header,
                          image::ImageSize size, std::span<std::uint8_t> rgb) {
  const auto pixels = static_cast<std::size_t>(std::int64_t{size.width} * size.height);
  require(rgb.size() == 3 * pixels, "room for another number of pixels than the image has");
  if (header.format == ImageFormat::jpeg) return state_->jpeg.decode(bytes, header, size, rgb);
  require(size == header.size(), "a size that this image cannot be decoded to");
  if (header.format == ImageFormat::png) return decode_png(bytes, header, rgb);
  decode_ppm(bytes, rgb);
}

}  // namespace hyperslab::io
