// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/image.hpp"

#include <cmath>

#include "gpu/gpu_test.hpp"
#include "ops/image_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Kind = ImageOperationKind;

struct Images {
  std::vector<Picture> pictures;
  std::vector<ImageAugmentation> augmentations;
  std::optional<Dim> count = {};  ///< of those with patches; else all

  void add(const Picture& picture, const ImageAugmentation& augmentation) {
    pictures.push_back(picture);
    augmentations.push_back(augmentation);
  }
};

/// Pictures, structs and results in memory of the GPU, between bytes that must stay as they are.
class GpuImage : public GpuTest {
 protected:
  static Tensor on_gpu(const Images& images, const ImageOutput& output, DType dtype) {
    Context ctx(Device::cuda);
    std::vector<Tensor> hosts;
    std::vector<Tensor> devices;
    const auto upload = [&](Tensor host) {
      devices.emplace_back(Device::cuda, host.view().dtype(), host.view().shape());
      hosts.push_back(std::move(host));
      copy(ctx, hosts.back().view(), devices.back().view());
      return devices.back().view();
    };
    std::vector<SourceImage> sources;
    for (const Picture& picture : images.pictures) {
      const View levels = upload(struct_tensor(picture.levels));
      sources.push_back({static_cast<const std::uint8_t*>(levels.raw()), picture.width,
                         picture.height, std::int64_t{picture.width} * 3});
    }
    const View descriptors = upload(struct_tensor(sources));
    const View augmentations = upload(struct_tensor(images.augmentations));
    const auto S = static_cast<Dim>(images.pictures.size());
    const auto scratch_bytes = static_cast<Dim>(augment_scratch_bytes(S, output));
    constexpr Dim kGuard = 64;
    const View scratch = upload(filled_tensor(DType::u8, {scratch_bytes + kGuard}, 7));
    const Shape shape = patches_shape(images.count.value_or(S), output);
    const View guarded = upload(filled_tensor(dtype, {shape.numel() + kGuard}, 77));
    augment_images(ctx, descriptors, augmentations, output, scratch.slice(0, scratch_bytes),
                   guarded.slice(0, shape.numel()).reshaped(shape));
    expect_guard(ctx, scratch.slice(scratch_bytes, kGuard), 7);
    expect_guard(ctx, guarded.slice(shape.numel(), kGuard), 77);
    Tensor out(Device::cpu, dtype, shape);
    copy(ctx, guarded.slice(0, shape.numel()).reshaped(shape), out.view());
    synchronize(ctx);
    return out;
  }

  static void expect_guard(Context& ctx, CView guard, double value) {
    Tensor host(Device::cpu, guard.dtype(), guard.shape());
    copy(ctx, guard, host.view());
    synchronize(ctx);
    for (const double found : to_doubles(host.view())) ASSERT_EQ(found, value);
  }

  /// EXPECTs the bits of the CPU, in every dtype.
  static void expect_match(const Images& images, const ImageOutput& output,
                           const std::string& what) {
    Context ctx(Device::cpu);
    for (const DType dtype : kGpuTypes) {
      const Tensor expected =
          augmented(ctx, images.pictures, images.augmentations, output, dtype, images.count);
      const Tensor found = on_gpu(images, output, dtype);
      EXPECT_TRUE(same_bits(found.view(), expected.view()))
          << what << " in " << name_of(dtype) << ", relative difference "
          << relative_difference(found.view(), expected.view());
    }
  }
};

ImageOutput output_of(Dim size, Dim patch, bool bicubic = false, Dim channels = 3) {
  ImageOutput out;
  out.size = size;
  out.patch = patch;
  out.channels = channels;
  out.bicubic = bicubic;
  return out;
}

ImageOperation operation_of(Kind kind, int which) {
  ImageOperation out;
  out.kind = kind;
  out.factor = which % 2 == 0 ? 0.37F : 1.63F;
  out.level = kind == Kind::posterize ? 4 + which % 4 : 90 + which;
  const std::int32_t turn[6] = {63303, -16962, 300000 + which, 16962, 63303, -190000};
  std::copy(std::begin(turn), std::end(turn), std::begin(out.matrix));
  return out;
}

TEST_F(GpuImage, ResizesAwkwardSizes) {
  const std::vector<std::pair<int, int>> sizes = {{1, 1},   {3, 1000}, {1000, 3},
                                                  {31, 17}, {64, 64},  {500, 375}};
  for (const auto& [size, patch] :
       std::vector<std::pair<Dim, Dim>>{{24, 8}, {64, 16}, {64, 8}, {33, 11}, {20, 4}, {224, 16}}) {
    for (const bool bicubic : {false, true}) {
      Images images;
      for (const auto& [width, height] : sizes) {
        const Picture picture = drawn_picture(width, height);
        images.add(picture, whole_picture(picture));
      }
      expect_match(images, output_of(size, patch, bicubic),
                   "size " + std::to_string(size) + (bicubic ? ", bicubic" : ", bilinear"));
    }
  }
}

TEST_F(GpuImage, CropsShiftsAndMirrors) {
  const Picture picture = drawn_picture(300, 211);
  Images images;
  for (int i = 0; i < 16; ++i) {
    ImageAugmentation augmentation;
    augmentation.left = 3.25 * i;
    augmentation.top = 1.5 * i;
    augmentation.right = 290 - 11 * i;
    augmentation.bottom = 205.125 - 7 * i;
    augmentation.reads_beyond = i % 2;
    augmentation.shift_x = i % 5 - 2;
    augmentation.shift_y = i % 7 - 3;
    augmentation.flip = i / 2 % 2;
    images.add(picture, augmentation);
  }
  expect_match(images, output_of(48, 8), "crops");
  expect_match(images, output_of(48, 8, true), "bicubic crops");
}

TEST_F(GpuImage, EveryOperationAlone) {
  Images images;
  for (int which = 0; which < 4; ++which) {
    for (int kind = 0; kind <= static_cast<int>(Kind::invert); ++kind) {
      const Picture picture = drawn_picture(80, 70, which < 2 ? 100 : 35, which);
      ImageAugmentation augmentation = whole_picture(picture);
      augmentation.operation_count = 1;
      augmentation.operations[0] = operation_of(static_cast<Kind>(kind), which);
      images.add(picture, augmentation);
    }
  }
  for (const Dim size : {2, 40, 64, 224}) expect_match(images, output_of(size, 2), "operations");
}

TEST_F(GpuImage, OperationsInARow) {
  Images images;
  for (int i = 0; i < 24; ++i) {
    const Picture picture = drawn_picture(90, 60, 100, i);
    ImageAugmentation augmentation = whole_picture(picture);
    augmentation.operation_count = i % (kMostImageOperations + 1);
    for (int k = 0; k < augmentation.operation_count; ++k) {
      augmentation.operations[k] = operation_of(static_cast<Kind>((i * 3 + k * 7) % 10), k);
    }
    images.add(picture, augmentation);
  }
  expect_match(images, output_of(64, 16), "operations in a row");
}

TEST_F(GpuImage, MixesAndErases) {
  for (const Dim channels : {3, 1}) {
    Images images;
    images.count = 11;              // two are partners alone
    for (int i = 0; i < 13; ++i) {  // the first has no partner
      const Picture picture = drawn_picture(50, 40, 100, i);
      ImageAugmentation augmentation = whole_picture(picture);
      augmentation.operation_count = i % 3 == 0 ? 1 : 0;
      augmentation.operations[0] = operation_of(Kind::saturation, i);
      augmentation.mix = static_cast<ImageMix>(i % 3);
      augmentation.partner = (5 * i) % 13 - (i == 0 ? 1 : 0);
      augmentation.weight = 0.3F + 0.01F * static_cast<float>(i);
      augmentation.cut = {3, 5, 2 * i, 17};
      if (i % 4 == 1) augmentation.erase = {i, 2, 9, 20};
      images.add(picture, augmentation);
    }
    for (const Dim patch : {1, 4, 8, 16}) {
      expect_match(images, output_of(32, patch, false, channels), "mixing");
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
