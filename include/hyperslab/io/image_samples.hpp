// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "hyperslab/core/context.hpp"
#include "hyperslab/image/augment.hpp"
#include "hyperslab/image/augment_config.hpp"
#include "hyperslab/io/config.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/io/images.hpp"
#include "hyperslab/ops/image.hpp"

namespace hyperslab::io {

class WorkerPool;

/// Options by which images become samples.
struct ImageSampleOptions {
  image::AugmentConfig augment;
  Dim size = 0;   ///< rows and columns of pixels that the model reads
  Dim patch = 0;  ///< rows and columns of a patch
  Dim channels = 3;
  std::uint64_t seed = 0;
  std::int64_t global_batch = 0;  ///< samples of a step, for image::MixMode::batch
  bool training = true;  ///< shuffled and augmented; else in file order, resized, the middle
  BrokenImages broken = BrokenImages::refuse;
  DecodeOn decode = DecodeOn::automatic;
  int threads = 1;  ///< that decode
};

/// One image of a microbatch, or the partner of one, before it is pixels. An item that does not
/// count is one black pixel.
struct ImageItem {
  std::int64_t index = 0;   ///< in the endless order of samples
  std::int64_t image = -1;  ///< in the set; -1: none, and it does not count
  ImageHeader header = {1, 1};
  image::ImageSize decoded = {1, 1};  ///< size that it is decoded to
  bool broken = false;                ///< it does not count
  image::Mixing mixing;
  std::int32_t partner = -1;  ///< place among the items of the one it is mixed with; -1: none
  [[nodiscard]] bool counts() const { return image >= 0 && !broken; }
  [[nodiscard]] std::size_t bytes() const {  ///< decoded
    return static_cast<std::size_t>(decoded.width) * static_cast<std::size_t>(decoded.height) * 3;
  }
};

/// Samples of images with their labels. In training sample g, with q = floor(g / repeats), is image
/// perm(q mod n, floor(q / n)) of the n of the set, as of text, with the augmentation of (seed, g);
/// image::draw_mixing says which are mixed. A pass is n samples: in `repeats` passes each image
/// comes `repeats` times. Without training, sample g is image g mod n. A sample counts one target.
class ImageSamples final : public Samples {
 public:
  ImageSamples(const ImageSet& set, const ImageSampleOptions& options);
  ~ImageSamples() override;
  ImageSamples(const ImageSamples&) = delete;
  ImageSamples& operator=(const ImageSamples&) = delete;
  ImageSamples(ImageSamples&&) = delete;
  ImageSamples& operator=(ImageSamples&&) = delete;

  [[nodiscard]] std::int64_t size() const override { return set_.size(); }
  [[nodiscard]] Dim targets() const override { return 1; }
  [[nodiscard]] bool may_ignore() const override { return false; }
  [[nodiscard]] std::int64_t counted(std::int64_t /*index*/) const override { return 1; }
  void read(std::int64_t first, std::int64_t end, const Batch& out) const override;

  [[nodiscard]] const ImageSet& set() const { return set_; }
  [[nodiscard]] const ImageSampleOptions& options() const { return options_; }
  [[nodiscard]] ops::ImageOutput output() const;
  /// Index in the set of the image of sample `index`.
  [[nodiscard]] std::int64_t image_of(std::int64_t index) const;

  // The steps of read(), for feeds that decode elsewhere.
  /// True if an image is decoded whole, as where no scaled decoding is to be had.
  using IsWhole = std::function<bool(const ImageItem&)>;
  /// Samples [first, first + count) with their headers and sizes, and after them, at most `count`,
  /// the partners in mixing that are not among them; those from `end` on are none.
  [[nodiscard]] std::vector<ImageItem> items(std::int64_t first, std::int64_t end, Dim count,
                                             const IsWhole& is_whole = {}) const;
  /// Decodes those items for which rgb(i) is not null, to there, by all threads; items that do not
  /// count become black.
  using RgbOf = std::function<std::uint8_t*(std::size_t item)>;
  void decode(std::span<ImageItem> items, const RgbOf& rgb) const;
  /// Augmentations of all items, and the labels, (B, 2) i32, and weights, (B) f32, of the B that
  /// are no mere partners; both may be absent. An image that does not count has the label
  /// ops::kIgnoredTarget.
  void finish(std::span<const ImageItem> items, std::span<ops::ImageAugmentation> augmentations,
              View labels, View weights) const;

 private:
  /// Throws the error with the image's name added, or notes that it is broken.
  void handle_broken(ImageItem& item, const Error& error) const;
  void draw_mixing(std::vector<ImageItem>& items) const;
  void read_header(ImageItem& item, const IsWhole& is_whole) const;
  void augment(std::span<const ImageItem> items, std::span<const std::size_t> offsets,
               std::span<const ops::ImageAugmentation> augmentations, View patches) const;

  const ImageSet& set_;
  ImageSampleOptions options_;
  std::unique_ptr<WorkerPool> pool_;
  mutable std::vector<ImageDecoder> decoders_;  ///< one for every thread of the pool
  mutable std::mutex read_mutex_;               ///< guards everything below
  mutable std::unique_ptr<Context> ctx_;
  mutable std::vector<std::uint8_t> pixels_;
  mutable std::vector<std::uint8_t> scratch_;
  mutable std::mutex broken_mutex_;
  mutable std::set<std::int64_t> named_;  ///< broken images
};

}  // namespace hyperslab::io
