// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/image_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/philox.hpp"
#include "hyperslab/ops/loss.hpp"
#include "worker_pool.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kMostNamed = 10;  // broken images, in warnings

template <class T>
CView bytes_of(std::span<const T> items) {
  return {items.data(), DType::u8, Device::cpu, {static_cast<Dim>(items.size_bytes())}};
}

}  // namespace

ImageSamples::ImageSamples(const ImageSet& set, const ImageSampleOptions& options)
    : set_(set), options_(options), pool_(std::make_unique<WorkerPool>(options.threads)) {
  require(options.size > 0 && options.patch > 0, "images of no pixels");
  require(options.augment.mix_mode == image::MixMode::pair || options.global_batch > 0,
          "a global batch of no images is mixed");
  if (set.size() == 0) {
    throw Error(ExitCode::data, set.description() + ": it holds no image; give another");
  }
  decoders_.resize(static_cast<std::size_t>(pool_->threads()));
}

ImageSamples::~ImageSamples() = default;

ops::ImageOutput ImageSamples::output() const {
  ops::ImageOutput output;
  output.size = options_.size;
  output.patch = options_.patch;
  output.channels = options_.channels;
  for (std::size_t c = 0; c < output.mean.size(); ++c) {
    output.mean[c] = static_cast<float>(options_.augment.mean[c]);
    output.deviation[c] = static_cast<float>(options_.augment.deviation[c]);
  }
  output.bicubic = options_.augment.interpolation == image::Interpolation::bicubic;
  return output;
}

std::int64_t ImageSamples::image_of(std::int64_t index) const {
  const std::int64_t n = size();
  if (!options_.training) return index % n;
  const std::int64_t place = index / options_.augment.repeats;
  return static_cast<std::int64_t>(permuted_index(static_cast<std::uint64_t>(place % n),
                                                  static_cast<std::uint64_t>(n), options_.seed,
                                                  static_cast<std::uint64_t>(place / n)));
}

void ImageSamples::handle_broken(ImageItem& item, const Error& error) const {
  const std::string what = fmt::format("{}: {}", set_.name(item.image), error.what());
  if (options_.broken == BrokenImages::refuse) {
    throw Error(ExitCode::data, what +
                                    "; mend or leave it out (pack-images --broken skip), or set "
                                    "data.broken_images to skip");
  }
  item.broken = true;
  item.header = {1, 1};
  item.decoded = {1, 1};
  const std::lock_guard lock(broken_mutex_);
  if (named_.size() == kMostNamed || !named_.insert(item.image).second) return;
  log::warn(fmt::format("{}; it does not count{}", what,
                        named_.size() == kMostNamed ? "; further ones are not named" : ""));
}

void ImageSamples::read_header(ImageItem& item, const IsWhole& is_whole) const {
  try {
    item.header = read_image_header(set_.bytes(item.image));
  } catch (const Error& error) {
    return handle_broken(item, error);
  }
  item.decoded = item.header.size();
  if (is_whole && is_whole(item)) return;
  const image::ImageSize least = image::least_decoded_size(
      options_.augment, options_.seed, static_cast<std::uint64_t>(item.index), item.header.size(),
      options_.size, options_.training);
  item.decoded = decoders_.front().decoded_size(item.header, least.width, least.height);
}

/// Items come in as samples that follow each other; partners elsewhere are appended.
void ImageSamples::draw_mixing(std::vector<ImageItem>& items) const {
  const auto count = static_cast<std::int64_t>(items.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t index = items[at].index;
    const image::Mixing mixing =
        image::draw_mixing(options_.augment, options_.seed, static_cast<std::uint64_t>(index),
                           static_cast<std::uint64_t>(options_.global_batch), options_.size);
    if (mixing.kind == ops::ImageMix::none) continue;
    const auto other = static_cast<std::int64_t>(mixing.partner);
    std::int64_t place = other - (index - i);
    if (place < 0 || place >= count) {
      place = static_cast<std::int64_t>(items.size());
      items.emplace_back().index = other;
    }
    items[at].mixing = mixing;
    items[at].partner = static_cast<std::int32_t>(place);
  }
}

std::vector<ImageItem> ImageSamples::items(std::int64_t first, std::int64_t end, Dim count,
                                           const IsWhole& is_whole) const {
  std::vector<ImageItem> items(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].index = first + static_cast<std::int64_t>(i);
  }
  if (options_.training && options_.augment.mixes()) draw_mixing(items);
  for (ImageItem& item : items) {
    if (item.index < end) item.image = image_of(item.index);
  }
  pool_->run(items.size(), [&](int, std::size_t i) {
    if (items[i].image >= 0) read_header(items[i], is_whole);
  });
  return items;
}

void ImageSamples::decode(std::span<ImageItem> items, const RgbOf& rgb) const {
  pool_->run(items.size(), [&](int worker, std::size_t i) {
    ImageItem& item = items[i];
    std::uint8_t* const to = rgb(i);
    if (to == nullptr) return;
    try {
      if (item.counts()) {
        decoders_[static_cast<std::size_t>(worker)].decode(set_.bytes(item.image), item.header,
                                                           item.decoded, {to, item.bytes()});
      }
    } catch (const Error& error) {
      handle_broken(item, error);
    }
    if (!item.counts()) std::fill_n(to, item.bytes(), std::uint8_t{0});
  });
}

void ImageSamples::finish(std::span<const ImageItem> items,
                          std::span<ops::ImageAugmentation> augmentations, View labels,
                          View weights) const {
  const auto label = labels ? labels.flat().span<std::int32_t>() : std::span<std::int32_t>();
  const auto weight = weights ? weights.span<float>() : std::span<float>();
  const auto label_of = [&](const ImageItem& item) {
    return item.counts() ? set_.label(item.image) : ops::kIgnoredTarget;
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ImageItem& item = items[i];
    ops::ImageAugmentation& augmentation = augmentations[i];
    augmentation = options_.training && item.counts()
                       ? image::draw_augmentation(options_.augment, options_.seed,
                                                  static_cast<std::uint64_t>(item.index),
                                                  item.header.size(), item.decoded, options_.size)
                       : image::validation_augmentation(options_.augment, item.header.size(),
                                                        item.decoded, options_.size);
    const ImageItem& partner =
        item.partner < 0 ? item : items[static_cast<std::size_t>(item.partner)];
    const bool mixed = item.partner >= 0 && item.counts() && partner.counts();
    if (mixed) {
      augmentation.mix = item.mixing.kind;
      augmentation.partner = item.partner;
      augmentation.weight = item.mixing.weight;
      augmentation.cut = item.mixing.cut;
    }
    if (2 * i < label.size()) {
      label[2 * i] = label_of(item);
      label[2 * i + 1] = label_of(mixed ? partner : item);
    }
    if (i < weight.size()) weight[i] = mixed ? item.mixing.weight : 1;
  }
}

void ImageSamples::read(std::int64_t first, std::int64_t end, const Batch& out) const {
  const std::lock_guard lock(read_mutex_);
  const Dim B = (out.patches ? out.patches : out.labels).shape()[0];
  std::vector<ImageItem> all = items(first, end, B);
  std::vector<std::size_t> offsets(all.size() + 1, 0);
  for (std::size_t i = 0; i < all.size(); ++i) offsets[i + 1] = offsets[i] + all[i].bytes();
  // Labels alone do not need pixels, but for images that may turn out to be broken.
  if (out.patches || options_.broken == BrokenImages::skip) {
    if (pixels_.size() < offsets.back()) pixels_.resize(offsets.back());
    decode(all, [&](std::size_t i) { return pixels_.data() + offsets[i]; });
  }
  std::vector<ops::ImageAugmentation> augmentations(all.size());
  finish(all, augmentations, out.labels, out.label_weights);
  if (out.patches) augment(all, offsets, augmentations, out.patches);
}

void ImageSamples::augment(std::span<const ImageItem> items, std::span<const std::size_t> offsets,
                           std::span<const ops::ImageAugmentation> augmentations,
                           View patches) const {
  if (!ctx_) ctx_ = std::make_unique<Context>(Device::cpu);
  std::vector<ops::SourceImage> sources(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    sources[i] = {pixels_.data() + offsets[i], items[i].decoded.width, items[i].decoded.height,
                  std::int64_t{3} * items[i].decoded.width};
  }
  scratch_.resize(ops::augment_scratch_bytes(static_cast<Dim>(items.size()), output()));
  const View scratch(scratch_.data(), DType::u8, Device::cpu, {static_cast<Dim>(scratch_.size())});
  ops::augment_images(*ctx_, bytes_of(std::span<const ops::SourceImage>(sources)),
                      bytes_of(augmentations), output(), scratch, patches);
}

}  // namespace hyperslab::io
