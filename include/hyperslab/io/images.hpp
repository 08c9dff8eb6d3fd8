// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/image/image_size.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// Encoded images with labels; size() is in images. fingerprint(): files of up to 1 GiB together
/// are read whole; of larger sets every offset, length and label, and of the files above 16 MiB
/// together about 8192 blocks of 4 KiB. files() have images in the place of tokens.
class ImageSet : public DataSource {
 public:
  [[nodiscard]] virtual std::int32_t label(std::int64_t index) const = 0;
  /// The encoded image (JPEG, PNG or PPM), valid as long as the set lives.
  [[nodiscard]] virtual std::span<const std::byte> bytes(std::int64_t index) const = 0;
  /// For messages: "data/shard_00003.tar: n01443537/n01443537_12.JPEG".
  [[nodiscard]] virtual std::string name(std::int64_t index) const = 0;
  /// In the order of the labels; empty if the files name none.
  [[nodiscard]] virtual const std::vector<std::string>& classes() const = 0;
};

struct ImageSetOptions {
  std::int64_t classes = 0;  ///< labels must be below it
  std::int64_t size = 0;     ///< width and height of a drawn image, pixels
  std::uint64_t seed = 0;    ///< seed of drawn images
};

/// Opens `synthetic` (drawn shapes, in memory, as PPM), one folder of pack-images, or every tar
/// file that the paths and globs name, in the order given (globs sorted). Images of a tar are the
/// members .jpg, .jpeg, .png and .ppm; the label is the number in the member .cls of the same stem
/// (WebDataset), else the label of the folder that holds the member, folders sorted by name.
/// Nothing is decoded. Throws Error(data) that names the file, what was expected and found.
[[nodiscard]] std::unique_ptr<ImageSet> open_images(const std::vector<std::string>& paths,
                                                    const ImageSetOptions& options);

/// Throws Error(data) if both sets name their classes and the names or their order differ.
void require_same_classes(const ImageSet& train, const ImageSet& validation);

enum class ImageFormat : std::uint8_t { jpeg, png, ppm };

struct ImageHeader {
  std::int32_t width = 0;
  std::int32_t height = 0;
  ImageFormat format = ImageFormat::jpeg;
  bool decodes_on_gpu = false;  ///< a whole baseline JPEG of 8 bits, grey or YCbCr: for nvJPEG
  [[nodiscard]] image::ImageSize size() const { return {width, height}; }
};

inline constexpr std::int64_t kMostImagePixels = 1LL << 26;

/// Reads format and size without decoding. Throws Error(data), without a file's name, for other
/// bytes, for unsupported formats, and for more than kMostImagePixels pixels.
[[nodiscard]] ImageHeader read_image_header(std::span<const std::byte> bytes);

/// Decodes images to 8-bit RGB: grey is repeated, palettes are looked up, alpha is left out, of 16
/// bits the high byte is taken, CMYK is converted as Adobe's programs store it (inverted): each
/// channel times black. One per thread: it keeps libjpeg's state between calls.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  /// The smallest size to which the image may be decoded so that no side falls below `least_width`
  /// and `least_height`, or below its own length: a JPEG's sides times k/8, rounded up, with k = 1,
  /// 2, 4 or 8 (libjpeg-turbo takes longer for 5/8 than for the whole); the whole of others.
  [[nodiscard]] image::ImageSize decoded_size(const ImageHeader& header, std::int32_t least_width,
                                              std::int32_t least_height) const;
  /// `size`: of decoded_size(); rgb: (size.height, size.width, 3), exactly as long. Throws
  /// Error(data), without a file's name, for an image that is damaged or cut short; then rgb holds
  /// anything.
  void decode(std::span<const std::byte> bytes, const ImageHeader& header, image::ImageSize size,
              std::span<std::uint8_t> rgb);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hyperslab::io
