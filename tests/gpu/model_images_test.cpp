// SPDX-License-Identifier: Apache-2.0
// Images that a GPU prepares beside a step, against those that the CPU prepares.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/io/image_samples.hpp"
#include "hyperslab/io/images.hpp"
#include "hyperslab/train/batch_feed.hpp"
#include "io/images/made_images.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

constexpr Dim kSize = 64;
constexpr Dim kPatch = 8;
constexpr Dim kB = 6;
constexpr Dim kPatches = (kSize / kPatch) * (kSize / kPatch);
constexpr Dim kValues = 3 * kPatch * kPatch;

/// JPEG images of several sizes, one PPM; image 4 is cut short.
class Set final : public io::ImageSet {
 public:
  Set() {
    for (int i = 0; i < 24; ++i) {
      images_.push_back(i % 7 == 3 ? make_ppm(90 + i, 70) : make_jpeg(260 + 9 * i, 200 + 5 * i));
    }
    images_[4].resize(images_[4].size() / 2);
  }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(images_); }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return static_cast<std::int32_t>(index);
  }
  [[nodiscard]] std::span<const std::byte> bytes(std::int64_t index) const override {
    return bytes_in(images_.at(static_cast<std::size_t>(index)));
  }
  [[nodiscard]] std::string name(std::int64_t index) const override {
    return "image " + std::to_string(index);
  }
  [[nodiscard]] const std::vector<std::string>& classes() const override { return classes_; }
  [[nodiscard]] std::string description() const override { return "set"; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }

 private:
  std::vector<std::string> images_;
  std::vector<std::string> classes_;
};

struct DeviceBatch {
  DeviceBatch(Device device, DType dtype)
      : patches(device, dtype, {kB, kPatches, kValues}),
        labels(device, DType::i32, {kB, 2}),
        weights(device, DType::f32, {kB}),
        position(device, DType::i64, {kB}) {
    views.patches = patches.view();
    views.labels = labels.view();
    views.label_weights = weights.view();
    views.sample_position = position.view();
  }
  Tensor patches, labels, weights, position;
  Batch views;
};

io::ImageSampleOptions options(io::DecodeOn decode, image::MixMode mode = image::MixMode::pair) {
  io::ImageSampleOptions out;
  out.size = kSize;
  out.patch = kPatch;
  out.seed = 3;
  out.threads = 4;
  out.decode = decode;
  out.broken = io::BrokenImages::skip;
  out.augment.mix_mode = mode;
  out.global_batch = 4 * kB;
  if (mode == image::MixMode::batch) out.augment.repeats = 3;
  out.augment.mixup = 0.8;
  out.augment.cutmix = 1;
  out.augment.policy = image::Policy::randaugment;
  out.augment.erase = 0.5;
  return out;
}

struct Difference {
  double mean = 0;  ///< in levels of 8 bits
  double largest = 0;
};

std::vector<double> doubles_of(Context& ctx, const Tensor& tensor) {
  Tensor host(Device::cpu, tensor.view().dtype(), tensor.view().shape());
  copy(ctx, tensor.view(), host.view());
  synchronize(ctx);
  return to_doubles(host.view());
}

Difference difference(const std::vector<double>& x, const std::vector<double>& y) {
  Difference out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double levels = std::abs(x[i] - y[i]) * 0.225 * 255;
    out.mean += levels / static_cast<double>(x.size());
    out.largest = std::max(out.largest, levels);
  }
  return out;
}

class ImagesOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  /// The largest differences of three steps of two microbatches each.
  Difference compare(io::DecodeOn decode, image::MixMode mode = image::MixMode::pair) {
    const Set set;
    io::ImageSampleOptions of_gpu = options(decode, mode);
    // Operations make small differences of decoders large.
    if (decode == io::DecodeOn::gpu) of_gpu.augment.policy = image::Policy::none;
    io::ImageSampleOptions of_cpu = of_gpu;
    of_cpu.decode = io::DecodeOn::cpu;
    const io::ImageSamples samples(set, of_gpu);
    const io::ImageSamples oracle(set, of_cpu);
    io::Loader loader(samples, 4 * kB, 1, 2);
    io::Loader same(oracle, 4 * kB, 1, 2);
    Context ctx(Device::cuda);
    DeviceBatch found(Device::cuda, DType::f32);
    const auto feed = train::make_feed(ctx, found.views, {6, 2, false});
    DeviceBatch expected(Device::cpu, DType::f32);
    Difference worst;
    for (std::int64_t step = 1; step <= 3; ++step) {
      for (int m = 0; m < 2; ++m) {
        feed->load(ctx, loader, step, m, found.views);
        synchronize(ctx);
        same.load(step, m, expected.views);
        const Difference here =
            difference(doubles_of(ctx, found.patches), to_doubles(expected.patches.view()));
        worst = {std::max(worst.mean, here.mean), std::max(worst.largest, here.largest)};
        EXPECT_EQ(doubles_of(ctx, found.labels), to_doubles(expected.labels.view()));
        EXPECT_EQ(doubles_of(ctx, found.weights), to_doubles(expected.weights.view()));
        EXPECT_EQ(doubles_of(ctx, found.position), to_doubles(expected.position.view()));
      }
    }
    feed->load(ctx, {samples, 6, 9, kB}, found.views);  // of an evaluation
    synchronize(ctx);
    oracle.read(6, 9, expected.views);
    EXPECT_EQ(doubles_of(ctx, found.labels), to_doubles(expected.labels.view()));
    feed->release();
    return worst;
  }
};

TEST_F(ImagesOnGpu, DecodedByTheCpuTheyAreTheSameWithinALevel) {
  EXPECT_LE(compare(io::DecodeOn::cpu).largest, 1.001);
}

TEST_F(ImagesOnGpu, RepeatedAndMixedByTheBatchTheyAreTheSameWithinALevel) {
  EXPECT_LE(compare(io::DecodeOn::cpu, image::MixMode::batch).largest, 1.001);
}

TEST_F(ImagesOnGpu, DecodedByTheGpuTheyAreNearlyTheSame) {
  Difference found;
  try {
    found = compare(io::DecodeOn::gpu);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();  // no nvJPEG here
  }
  EXPECT_LE(found.mean, 3);  // the CPU decodes to half the size
}

}  // namespace
}  // namespace hyperslab::test
