// SPDX-License-Identifier: Apache-2.0
#include "images/jpeg_header.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

// Markers of ITU-T T.81, table B.1.
constexpr std::uint32_t kBaseline = 0xC0;
constexpr std::uint32_t kExtended = 0xC1;
constexpr std::uint32_t kProgressive = 0xC2;
constexpr std::uint32_t kHuffmanTables = 0xC4;
constexpr std::uint32_t kExtension = 0xC8;
constexpr std::uint32_t kArithmeticTables = 0xCC;
constexpr std::uint32_t kEndOfImage = 0xD9;
constexpr std::uint32_t kStartOfScan = 0xDA;
constexpr std::uint32_t kAdobe = 0xEE;

// Scans times pixels: sixteen scans of the largest image. Each scan of a progressive image passes
// over all of its coefficients, however few bytes it has.
constexpr std::int64_t kMostScannedPixels = 16 * kMostImagePixels;

struct Segment {
  std::uint32_t marker = 0;
  std::span<const std::byte> body;
};

/// Segments from the start of the image on; entropy-coded bytes between them are passed over.
class Segments {
 public:
  explicit Segments(std::span<const std::byte> bytes) : rest_(bytes.subspan(2)) {}

  /// The next one; false if the bytes end before it does.
  [[nodiscard]] bool next(Segment& segment) {
    rest_ = rest_.subspan(to_marker());
    while (!rest_.empty() && byte_at(rest_, 0) == 0xFF) rest_ = rest_.subspan(1);
    if (rest_.empty()) return false;
    segment = {byte_at(rest_, 0), {}};
    rest_ = rest_.subspan(1);
    if (!has_body(segment.marker)) return true;
    if (rest_.size() < 2) return false;
    const std::size_t length = big_endian_16(rest_, 0);
    if (length < 2 || rest_.size() < length) return false;
    segment.body = rest_.subspan(2, length - 2);
    rest_ = rest_.subspan(length);
    return true;
  }

 private:
  [[nodiscard]] std::size_t to_marker() const {
    const void* found = rest_.empty() ? nullptr : std::memchr(rest_.data(), 0xFF, rest_.size());
    if (found == nullptr) return rest_.size();
    return static_cast<std::size_t>(static_cast<const std::byte*>(found) - rest_.data());
  }
  static bool has_body(std::uint32_t marker) {
    return marker > 0x01 && (marker < 0xD0 || marker > kEndOfImage);
  }

  std::span<const std::byte> rest_;
};

bool is_frame(std::uint32_t marker) {
  return marker >= kBaseline && marker <= 0xCF && marker != kHuffmanTables &&
         marker != kExtension && marker != kArithmeticTables;
}

/// True if the chroma of a frame of YCbCr is subsampled in a way that nvJPEG's kernels know: 4:4:4,
/// 4:4:0, 4:2:2, 4:2:0, 4:1:1 or 4:1:0.
bool has_common_sampling(std::span<const std::byte> frame) {
  const std::uint32_t luma = byte_at(frame, 7);
  const bool plain_chroma = byte_at(frame, 10) == 0x11 && byte_at(frame, 13) == 0x11;
  return plain_chroma && (luma == 0x11 || luma == 0x12 || luma == 0x21 || luma == 0x22 ||
                          luma == 0x41 || luma == 0x42);
}

/// True if the three components have the numbers 'R', 'G', 'B', which libjpeg takes for colours.
bool is_named_rgb(std::span<const std::byte> frame) {
  return byte_at(frame, 6) == 'R' && byte_at(frame, 9) == 'G' && byte_at(frame, 12) == 'B';
}

ImageHeader header_of(const Segment& segment, std::optional<std::uint32_t> transform) {
  const auto frame = segment.body;
  if (frame.size() < 6 || frame.size() < 6 + 3 * std::size_t{byte_at(frame, 5)}) {
    fail_image("a JPEG image with a whole header", "a cut frame header");
  }
  const std::uint32_t bits = byte_at(frame, 0);
  const std::uint32_t components = byte_at(frame, 5);
  if (segment.marker != kBaseline && segment.marker != kExtended &&
      segment.marker != kProgressive) {
    fail_image("a baseline or progressive JPEG with Huffman codes",
               fmt::format("one of another process (marker {:#x})", segment.marker));
  }
  if (bits != 8) fail_image("a JPEG of 8 bits a sample", fmt::format("{} bits", bits));
  if (components != 1 && components != 3 && components != 4) {
    fail_image("a grey, colour or CMYK JPEG", fmt::format("{} components", components));
  }
  ImageHeader header{.width = static_cast<std::int32_t>(big_endian_16(frame, 3)),
                     .height = static_cast<std::int32_t>(big_endian_16(frame, 1)),
                     .format = ImageFormat::jpeg};
  const bool is_ycbcr = components == 3 && transform.value_or(1) == 1 && !is_named_rgb(frame) &&
                        has_common_sampling(frame);
  header.decodes_on_gpu = segment.marker == kBaseline && (components == 1 || is_ycbcr);
  return header;
}

/// Refuses an image that takes seconds to decode for its many scans. `segments`: behind the frame.
void require_few_scans(const ImageHeader& header, Segments& segments) {
  const std::int64_t pixels = std::int64_t{header.width} * header.height;
  if (pixels <= 0 || pixels > kMostImagePixels) return;  // which is refused as such
  std::int64_t scans = 0;
  Segment segment;
  while (segments.next(segment) && segment.marker != kEndOfImage) {
    if (segment.marker == kStartOfScan) ++scans;
  }
  if (scans <= kMostScannedPixels / pixels) return;
  fail_image(fmt::format("a JPEG whose scans times pixels are at most {}", kMostScannedPixels),
             fmt::format("{} scans of {} x {}", scans, header.width, header.height));
}

/// A cut file has no end. Decoders on a GPU take it and leave the rest grey; libjpeg reports it.
bool ends_with_its_mark(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && byte_at(bytes, bytes.size() - 2) == 0xFF &&
         byte_at(bytes, bytes.size() - 1) == kEndOfImage;
}

}  // namespace

ImageHeader read_jpeg_header(std::span<const std::byte> bytes) {
  Segments segments(bytes);
  std::optional<std::uint32_t> transform;  // in Adobe's marker: 0: RGB or CMYK, 1: YCbCr, 2: YCCK
  Segment segment;
  while (segments.next(segment)) {
    if (segment.marker == kAdobe && segment.body.size() >= 12 &&
        text_of(segment.body).starts_with("Adobe")) {
      transform = byte_at(segment.body, 11);
    }
    if (is_frame(segment.marker)) {
      ImageHeader header = header_of(segment, transform);
      header.decodes_on_gpu = header.decodes_on_gpu && ends_with_its_mark(bytes);
      require_few_scans(header, segments);
      return header;
    }
    if (segment.marker == kStartOfScan || segment.marker == kEndOfImage) {
      fail_image("a JPEG image with a frame header", "none before the first scan");
    }
  }
  fail_image("a whole JPEG image", "one that ends in its header");
}

}  // namespace hyperslab::io
