// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/image_samples.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/loss.hpp"
#include "made_images.hpp"

namespace hyperslab::test {
namespace {

constexpr Dim kSize = 16;
constexpr Dim kPatch = 8;
constexpr Dim kPatches = 4;
constexpr Dim kValues = 3 * kPatch * kPatch;

/// Images of several sizes and formats; those in `damaged` are cut short.
class Set final : public io::ImageSet {
 public:
  explicit Set(std::vector<std::string> images) : images_(std::move(images)) {}
  explicit Set(int images, const std::set<std::int64_t>& damaged = {}) {
    for (int i = 0; i < images; ++i) {
      std::string image = i % 2 == 0 ? make_jpeg(20 + i, 18 + 3 * i) : make_ppm(40 - i, 16 + i);
      if (damaged.contains(i)) image.resize(image.size() / 2);
      images_.push_back(std::move(image));
    }
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(images_); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index);
  }
  [[nodiscard]] std::span<const std::byte> bytes(std::int64_t index) const override {
    return bytes_in(images_.at(static_cast<std::size_t>(index)));
  }
  [[nodiscard]] std::string name(std::int64_t index) const override {
    return "set: image " + std::to_string(index);
  }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }
  [[nodiscard]] std::string description() const override { return "set"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }

 private:
  std::vector<std::string> images_;
  std::vector<std::string> classes_;
};

struct OwnedBatch {
  explicit OwnedBatch(Dim B)
      : patches(Device::cpu, DType::f32, {B, kPatches, kValues}),
        labels(Device::cpu, DType::i32, {B, 2}),
        weights(Device::cpu, DType::f32, {B}) {
    views.patches = patches.view();
    views.labels = labels.view();
    views.label_weights = weights.view();
  }
  [[nodiscard]] std::vector<float> image(Dim b) const {
    const auto values = views.patches.slice(b, 1).span<float>();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::int32_t label(Dim b, int which = 0) const {
    return views.labels.data<std::int32_t>()[2 * b + which];
  }
  [[nodiscard]] float weight(Dim b) const { return views.label_weights.data<float>()[b]; }
  Tensor patches, labels, weights;
  Batch views;
};

io::ImageSampleOptions options(bool training = true) {
  io::ImageSampleOptions out;
  out.size = kSize;
  out.patch = kPatch;
  out.seed = 7;
  out.training = training;
  out.threads = 2;
  return out;
}

std::string refusal(const io::ImageSamples& samples, std::int64_t first, const OwnedBatch& batch) {
  try {
    samples.read(first, io::kNoEnd, batch.views);
  } catch (const Error& error) {
    return error.code() == ExitCode::data ? error.what() : "wrong code";
  }
  return "read";
}

TEST(ImageSamples, EveryImageOnceAnEpochInAnotherOrderEach) {
  const Set set(11);
  const io::ImageSamples samples(set, options());
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> second;
  for (std::int64_t g = 0; g < 11; ++g) first.push_back(samples.image_of(g));
  for (std::int64_t g = 11; g < 22; ++g) second.push_back(samples.image_of(g));

  EXPECT_NE(first, second);
  for (auto* epoch : {&first, &second}) {
    std::ranges::sort(*epoch);
    for (std::int64_t i = 0; i < 11; ++i) EXPECT_EQ((*epoch)[static_cast<std::size_t>(i)], i);
  }
  EXPECT_EQ(io::ImageSamples(set, options(false)).image_of(14), 3);
}

TEST(ImageSamples, ASampleIsTheSameInWhateverBatch) {
  const Set set(9);
  io::ImageSampleOptions mixed = options();
  mixed.augment.mixup = 0.8;
  mixed.augment.cutmix = 1;
  const io::ImageSamples samples(set, mixed);
  OwnedBatch whole(8);
  samples.read(0, io::kNoEnd, whole.views);

  std::set<float> weights;
  for (std::int64_t first = 0; first < 8; first += 2) {
    OwnedBatch part(2);
    samples.read(first, io::kNoEnd, part.views);
    for (Dim b = 0; b < 2; ++b) {
      EXPECT_EQ(part.image(b), whole.image(first + b));
      EXPECT_EQ(part.label(b), whole.label(first + b));
      EXPECT_EQ(part.label(b, 1), whole.label(first + (1 - b)));
      EXPECT_EQ(part.weight(b), whole.weight(first + b));
    }
    EXPECT_EQ(part.weight(0), part.weight(1));
    weights.insert(part.weight(0));
  }
  EXPECT_GT(weights.size(), 2U);
  OwnedBatch later(8);
  samples.read(9, io::kNoEnd, later.views);  // the next epoch
  EXPECT_NE(later.image(0), whole.image(0));
}

/// The image that a JPEG holds, undamaged and never scaled.
std::string as_ppm(std::string_view jpeg, int width, int height) {
  const Pixels pixels = turbojpeg_decoded(jpeg, width, height);
  std::string out = "P6\n" + std::to_string(width) + " " + std::to_string(height) + "\n255\n";
  out.append(pixels.begin(), pixels.end());
  return out;
}

TEST(ImageSamples, AnImageThatIsDecodedSmallerShowsTheSame) {
  std::vector<std::string> scaled;
  std::vector<std::string> whole;
  for (int i = 0; i < 8; ++i) {
    const int width = 260 + 9 * i;
    const int height = 200 + 5 * i;
    scaled.push_back(make_jpeg(width, height));
    whole.push_back(as_ppm(scaled.back(), width, height));
  }
  const Set small(scaled);
  const Set large(whole);
  for (const bool training : {true, false}) {
    OwnedBatch a(8);
    OwnedBatch b(8);
    io::ImageSamples(small, options(training)).read(0, io::kNoEnd, a.views);
    io::ImageSamples(large, options(training)).read(0, io::kNoEnd, b.views);
    for (Dim i = 0; i < 8; ++i) {
      const auto x = a.image(i);
      const auto y = b.image(i);
      double mean = 0;  // in levels of 8 bits
      for (std::size_t k = 0; k < x.size(); ++k) {
        mean += std::abs(x[k] - y[k]) * 0.225 * 255 / static_cast<double>(x.size());
      }
      EXPECT_LT(mean, 5) << i << (training ? " in training" : "");
    }
  }
}

TEST(ImageSamples, OfLabelsAloneNothingIsDecoded) {
  const Set set(6, {0, 1, 2, 3, 4, 5});
  io::ImageSampleOptions mixed = options();
  mixed.augment.cutmix = 1;
  const io::ImageSamples samples(set, mixed);
  OwnedBatch batch(4);
  batch.views.patches = View();
  const Set sound(6);
  OwnedBatch expected(4);
  io::ImageSamples(sound, mixed).read(0, io::kNoEnd, expected.views);

  samples.read(0, io::kNoEnd, batch.views);

  for (Dim b = 0; b < 4; ++b) {
    EXPECT_EQ(batch.label(b), expected.label(b));
    EXPECT_EQ(batch.label(b, 1), expected.label(b, 1));
    EXPECT_EQ(batch.weight(b), expected.weight(b));
  }
}

TEST(ImageSamples, WhatLiesBeyondTheEndDoesNotCount) {
  const Set set(5);
  const io::ImageSamples samples(set, options(false));
  OwnedBatch batch(4);

  samples.read(3, 5, batch.views);

  EXPECT_EQ(batch.label(0), 3);
  EXPECT_EQ(batch.label(1), 4);
  EXPECT_EQ(batch.label(2), ops::kIgnoredTarget);
  EXPECT_EQ(batch.label(3), ops::kIgnoredTarget);
  EXPECT_EQ(batch.image(2), batch.image(3));
}

TEST(ImageSamples, ABrokenImageIsNamedOrDoesNotCount) {
  const Set set(6, {2, 3});
  OwnedBatch batch(6);
  io::ImageSampleOptions in_order = options(false);
  const std::string refused = refusal(io::ImageSamples(set, in_order), 0, batch);
  in_order.broken = io::BrokenImages::skip;

  io::ImageSamples(set, in_order).read(0, io::kNoEnd, batch.views);

  EXPECT_THAT(refused, testing::HasSubstr("set: image 2: "));
  EXPECT_THAT(refused, testing::HasSubstr("set data.broken_images to skip"));
  for (const Dim b : {0, 1, 4, 5}) EXPECT_EQ(batch.label(b), b);
  for (const Dim b : {2, 3}) EXPECT_EQ(batch.label(b), ops::kIgnoredTarget);
  OwnedBatch labels(6);  // of a stage without patches
  labels.views.patches = View();
  io::ImageSamples(set, in_order).read(0, io::kNoEnd, labels.views);
  for (Dim b = 0; b < 6; ++b) EXPECT_EQ(labels.label(b), batch.label(b));
}

TEST(ImageSamples, APairWithABrokenImageIsNotMixed) {
  const Set set(2, {0});
  io::ImageSampleOptions mixed = options();
  mixed.augment.mixup = 1;
  mixed.broken = io::BrokenImages::skip;
  OwnedBatch batch(2);

  io::ImageSamples(set, mixed).read(0, io::kNoEnd, batch.views);

  for (Dim b = 0; b < 2; ++b) {
    EXPECT_EQ(batch.weight(b), 1);
    EXPECT_EQ(batch.label(b), batch.label(b, 1));
  }
}

}  // namespace
}  // namespace hyperslab::test
