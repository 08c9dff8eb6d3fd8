// SPDX-License-Identifier: Apache-2.0
// The header of an image, and its pixels, whole and as small as they can be decoded.
#include <span>
#include <vector>

#include "fuzz/input.hpp"
#include "hyperslab/io/images.hpp"

namespace {

constexpr std::int64_t kMostPixels = 1 << 18;

void decode(std::span<const std::byte> bytes, const hyperslab::io::ImageHeader& header,
            std::int32_t least) {
  hyperslab::fuzz::take_or_refuse({hyperslab::ExitCode::data}, [&] {
    static hyperslab::io::ImageDecoder decoder;
    const auto size = decoder.decoded_size(header, least, least);
    std::vector<std::uint8_t> rgb(static_cast<std::size_t>(size.width) *
                                  static_cast<std::size_t>(size.height) * 3);
    decoder.decode(bytes, header, size, rgb);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  hyperslab::fuzz::take_or_refuse({hyperslab::ExitCode::data}, [&] {
    const auto header = hyperslab::io::read_image_header(bytes);
    if (std::int64_t{header.width} * header.height > kMostPixels) return;
    decode(bytes, header, header.width);
    decode(bytes, header, 1);
  });
  return 0;
}
