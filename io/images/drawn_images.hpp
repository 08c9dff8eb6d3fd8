// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// Shapes that are drawn at opening, as PPM in memory: up to 512 images, fewer if they would take
/// more than 96 MiB. Image i has label i mod classes, which decides shape and colour; the Philox
/// stream of (seed, i) decides place, size, shades and noise. So another seed has other images of
/// the same classes.
class DrawnImages final : public ImageSet {
 public:
  explicit DrawnImages(const ImageSetOptions& options);

  [[nodiscard]] std::int64_t size() const override { return count_; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::span<const std::byte> bytes(std::int64_t index) const override;
  [[nodiscard]] std::string name(std::int64_t index) const override;
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override;

 private:
  ImageSetOptions options_;
  std::vector<std::string> classes_;
  std::size_t image_bytes_ = 0;  ///< bytes of one image
  std::int64_t count_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace hyperslab::io
