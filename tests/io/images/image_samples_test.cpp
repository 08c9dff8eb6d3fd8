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

TEST(ImageSamples, RepeatsOfAnImageFollowEachOtherAugmentedDifferently) {
  const Set set(7);
  io::ImageSampleOptions repeated = options();
  repeated.augment.repeats = 3;
  const io::ImageSamples samples(set, repeated);
  const io::ImageSamples once(set, options());
  OwnedBatch batch(21);
  samples.read(0, io::kNoEnd, batch.views);

  EXPECT_EQ(samples.size(), 7);  // of a pass
  for (std::int64_t g = 0; g < 63; ++g) EXPECT_EQ(samples.image_of(g), once.image_of(g / 3));
  for (Dim b = 0; b < 21; b += 3) {
    const Dim label = batch.label(b);
    for (Dim i = 1; i < 3; ++i) {
      EXPECT_EQ(batch.label(b + i), label);
      EXPECT_NE(batch.image(b + i), batch.image(b + i - 1));
    }
    EXPECT_NE(batch.image(b), batch.image(b + 2));
  }
}

/// Whether patches of f32 are a mean of two others with the weight of the first.
void expect_mixed(const std::vector<float>& found, const std::vector<float>& own,
                  const std::vector<float>& partner, float weight) {
  for (std::size_t k = 0; k < found.size(); ++k) {
    ASSERT_NEAR(found[k], weight * own[k] + (1 - weight) * partner[k], 1e-5);
  }
}

TEST(ImageSamples, ABatchIsMixedAsAWholeOnAnyLayout) {
  constexpr Dim kBatch = 12;
  const Set set(9);
  io::ImageSampleOptions mixed = options();
  mixed.global_batch = kBatch;
  mixed.augment.mixup = 1;
  mixed.augment.repeats = 2;
  mixed.augment.mix_mode = image::MixMode::batch;
  const io::ImageSamples samples(set, mixed);
  io::ImageSampleOptions plain = mixed;
  plain.augment.mixup = 0;
  for (const std::int64_t first : {std::int64_t{0}, kBatch, 2 * kBatch}) {
    OwnedBatch alone(kBatch);
    io::ImageSamples(set, plain).read(first, io::kNoEnd, alone.views);
    OwnedBatch whole(kBatch);
    samples.read(first, io::kNoEnd, whole.views);

    for (Dim b = 0; b < kBatch; ++b) {
      const image::Mixing mixing =
          image::draw_mixing(mixed.augment, mixed.seed, static_cast<std::uint64_t>(first + b),
                             static_cast<std::uint64_t>(kBatch), kSize);
      const Dim partner = static_cast<Dim>(mixing.partner) - first;
      EXPECT_EQ(whole.label(b), alone.label(b));
      EXPECT_EQ(whole.label(b, 1), alone.label(partner));
      EXPECT_EQ(whole.weight(b), whole.weight(0));
      expect_mixed(whole.image(b), alone.image(b), alone.image(partner), whole.weight(0));
    }
    for (const Dim microbatch : {1, 3, 4}) {  // partners are elsewhere
      for (Dim at = 0; at < kBatch; at += microbatch) {
        OwnedBatch part(microbatch);
        samples.read(first + at, io::kNoEnd, part.views);
        OwnedBatch labels(microbatch);  // of a stage without patches
        labels.views.patches = View();
        samples.read(first + at, io::kNoEnd, labels.views);
        for (Dim b = 0; b < microbatch; ++b) {
          EXPECT_EQ(part.image(b), whole.image(at + b));
          EXPECT_EQ(part.weight(b), whole.weight(at + b));
          EXPECT_EQ(labels.weight(b), whole.weight(at + b));
          for (const int which : {0, 1}) {
            EXPECT_EQ(part.label(b, which), whole.label(at + b, which));
            EXPECT_EQ(labels.label(b, which), whole.label(at + b, which));
          }
        }
      }
    }
  }
}

TEST(ImageSamples, WhoseBatchPartnerIsBrokenIsNotMixed) {
  constexpr Dim kBatch = 6;
  const Set set(kBatch, {1, 4});
  io::ImageSampleOptions mixed = options();
  mixed.global_batch = kBatch;
  mixed.augment.mixup = 1;
  mixed.augment.mix_mode = image::MixMode::batch;
  mixed.broken = io::BrokenImages::skip;
  const io::ImageSamples samples(set, mixed);
  OwnedBatch whole(kBatch);
  samples.read(0, io::kNoEnd, whole.views);

  int broken_partners = 0;
  for (Dim b = 0; b < kBatch; ++b) {
    const image::Mixing mixing =
        image::draw_mixing(mixed.augment, mixed.seed, static_cast<std::uint64_t>(b),
                           static_cast<std::uint64_t>(kBatch), kSize);
    const bool counts = whole.label(b) != ops::kIgnoredTarget;
    const bool mixes =
        counts && whole.label(static_cast<Dim>(mixing.partner)) != ops::kIgnoredTarget;
    broken_partners += counts && !mixes ? 1 : 0;
    EXPECT_EQ(whole.weight(b), mixes ? mixing.weight : 1);
    OwnedBatch alone(1);
    samples.read(b, io::kNoEnd, alone.views);
    EXPECT_EQ(alone.weight(0), whole.weight(b));
    EXPECT_EQ(alone.label(0, 1), whole.label(b, 1));
    EXPECT_EQ(alone.image(0), whole.image(b));
  }
  EXPECT_GT(broken_partners, 0);
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
