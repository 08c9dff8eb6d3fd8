// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// libjpeg-turbo's decompressor.
class JpegDecoder {
 public:
  JpegDecoder();
  /// As ImageDecoder::decoded_size() and decode().
  [[nodiscard]] static image::ImageSize decoded_size(const ImageHeader& header,
                                                     std::int32_t least_width,
                                                     std::int32_t least_height);
  void decode(std::span<const std::byte> bytes, const ImageHeader& header, image::ImageSize size,
              std::span<std::uint8_t> rgb);

 private:
  void make_handle();
  void decode_whole(std::span<const std::byte> bytes, const ImageHeader& header,
                    image::ImageSize size, std::span<std::uint8_t> rgb);
  struct Destroy {
    void operator()(void* handle) const;
  };
  void decompress(std::span<const std::byte> bytes, image::ImageSize size, int pixel_format,
                  std::uint8_t* out);

  std::unique_ptr<void, Destroy> handle_;
  std::vector<std::uint8_t> cmyk_;  ///< pixels of the last CMYK image
};

}  // namespace hyperslab::io
