// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/image.hpp"

#include <cmath>
#include <fstream>

#include "ops/image_case.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Kind = ImageOperationKind;

class ImageOp : public OpsTest {
 protected:
  /// A 2 x 2 picture of greys after one operation, as levels.
  std::vector<double> changed(const std::vector<int>& greys, const ImageOperation& operation) {
    Picture picture{2, 2, {}};
    for (const int grey : greys)
      picture.levels.insert(picture.levels.end(), 3, static_cast<std::uint8_t>(grey));
    ImageAugmentation augmentation = whole_picture(picture);
    augmentation.operation_count = 1;
    augmentation.operations[0] = operation;
    std::vector<double> values =
        to_doubles(augmented(ctx, {picture}, {augmentation}, plain_output(2, 2)).view());
    for (double& value : values) value = std::round(value);
    return {values.begin(), values.begin() + 4};
  }
};

[[nodiscard]] ImageOperation blending(Kind kind, float factor) {
  ImageOperation out;
  out.kind = kind;
  out.factor = factor;
  return out;
}
[[nodiscard]] ImageOperation levelled(Kind kind, int level) {
  ImageOperation out;
  out.kind = kind;
  out.level = level;
  return out;
}

/// One line of tests/golden/images.txt.
struct GoldenCase {
  std::string name;
  Picture own, partner;
  ImageAugmentation augmentation;
  ImageBox partner_erase;
  ImageOutput output;
  double within = 0;
  std::vector<double> patches;
};

void read_operation(std::istream& in, ImageOperation& operation) {
  int kind = 0;
  in >> kind >> operation.factor >> operation.level;
  operation.kind = static_cast<Kind>(kind);
  for (std::int32_t& entry : operation.matrix) in >> entry;
}

void read_box(std::istream& in, ImageBox& box) {
  in >> box.left >> box.top >> box.width >> box.height;
}

bool read_case(std::istream& in, GoldenCase& out) {
  int width = 0;
  int height = 0;
  int contrast = 0;
  int mix = 0;
  std::size_t count = 0;
  ImageAugmentation& a = out.augmentation;
  in >> out.name >> width >> height >> contrast >> out.output.size >> out.output.patch >>
      out.output.channels >> out.output.bicubic >> out.within >> a.left >> a.top >> a.right >>
      a.bottom >> a.reads_beyond >> a.shift_x >> a.shift_y >> a.flip >> a.operation_count;
  if (!in) return false;
  for (int i = 0; i < a.operation_count; ++i) read_operation(in, a.operations[i]);
  in >> mix >> a.weight;
  a.mix = static_cast<ImageMix>(mix);
  a.partner = 1;
  read_box(in, a.cut);
  read_box(in, a.erase);
  read_box(in, out.partner_erase);
  in >> count;
  out.patches.resize(count);
  for (double& value : out.patches) in >> value;
  out.output.mean = {0.5F, 0.4F, 0.3F};
  out.output.deviation = {0.2F, 0.25F, 0.3F};
  out.own = drawn_picture(width, height, contrast, 0);
  out.partner = drawn_picture(width, height, contrast, 1);
  return static_cast<bool>(in);
}

TEST_F(ImageOp, AgreesWithTheNumpyModel) {
  std::ifstream file(HYPERSLAB_GOLDEN "/images.txt");
  int cases = 0;
  GoldenCase golden;
  while (golden = GoldenCase(), read_case(file, golden)) {
    ++cases;
    ImageAugmentation partner = whole_picture(golden.partner);
    partner.erase = golden.partner_erase;
    const Tensor found =
        augmented(ctx, {golden.own, golden.partner}, {golden.augmentation, partner}, golden.output);
    const auto values = to_doubles(found.view());
    ASSERT_EQ(values.size(), 2 * golden.patches.size()) << golden.name;
    const double level = 1.0 / 255 / 0.2;
    for (std::size_t i = 0; i < golden.patches.size(); ++i) {
      ASSERT_NEAR(values[i], golden.patches[i], golden.within * level + 1e-4)
          << golden.name << ", value " << i;
    }
  }
  EXPECT_GT(cases, 30);
}

/// tests/golden/resize.txt, of torchvision with antialiasing.
TEST_F(ImageOp, ResizesAsTorchvision) {
  std::ifstream file(HYPERSLAB_GOLDEN "/resize.txt");
  int cases = 0;
  std::string name;
  int width = 0;
  int height = 0;
  int contrast = 0;
  Dim size = 0;
  bool bicubic = false;
  ImageAugmentation part;
  while (file >> name >> width >> height >> contrast >> size >> bicubic >> part.left >> part.top >>
         part.right >> part.bottom) {
    ++cases;
    ImageOutput output = plain_output(size, size);
    output.bicubic = bicubic;
    const Tensor patches = augmented(ctx, {drawn_picture(width, height, contrast)}, {part}, output);
    const auto found = to_doubles(patches.view());  // (channel, row, column)
    for (Dim i = 0; i < size * size * 3; ++i) {
      int expected = -1;
      file >> expected;
      const auto offset = static_cast<std::size_t>(i % 3 * size * size + i / 3);
      ASSERT_NEAR(found[offset], expected, 1.001)
          << name << (bicubic ? ", bicubic" : ", bilinear") << ", value " << i;
    }
  }
  EXPECT_EQ(cases, 16);
}

TEST_F(ImageOp, OperationsGiveValuesDoneByHand) {
  const std::vector<int> greys = {10, 100, 150, 240};
  EXPECT_EQ(changed(greys, blending(Kind::brightness, 0.5F)),
            (std::vector<double>{5, 50, 75, 120}));
  EXPECT_EQ(changed(greys, blending(Kind::brightness, 2)),
            (std::vector<double>{20, 200, 255, 255}));
  // The mean is 125.
  EXPECT_EQ(changed(greys, blending(Kind::contrast, 0)), (std::vector<double>{125, 125, 125, 125}));
  EXPECT_EQ(changed(greys, blending(Kind::contrast, 2)), (std::vector<double>{0, 75, 175, 255}));
  EXPECT_EQ(changed(greys, blending(Kind::saturation, 0)),
            (std::vector<double>{10, 100, 150, 240}));
  EXPECT_EQ(changed(greys, blending(Kind::sharpness, 0)), (std::vector<double>{10, 100, 150, 240}));
  EXPECT_EQ(changed(greys, levelled(Kind::posterize, 1)), (std::vector<double>{0, 0, 128, 128}));
  EXPECT_EQ(changed(greys, levelled(Kind::solarize, 150)), (std::vector<double>{10, 100, 105, 15}));
  EXPECT_EQ(changed({60, 70, 80, 110}, levelled(Kind::autocontrast, 0)),
            (std::vector<double>{0, 51, 102, 255}));
  EXPECT_EQ(changed(greys, levelled(Kind::equalize, 0)), (std::vector<double>{10, 100, 150, 240}));
  EXPECT_EQ(changed(greys, levelled(Kind::invert, 0)), (std::vector<double>{245, 155, 105, 15}));
}

TEST_F(ImageOp, WhatAnAffineOperationUncoversHasItsLevel) {
  ImageOperation shift = levelled(Kind::affine, 77);
  const std::int32_t one_to_the_left[6] = {65536, 0, 65536 + 32768, 0, 65536, 32768};
  std::copy(std::begin(one_to_the_left), std::end(one_to_the_left), std::begin(shift.matrix));
  EXPECT_EQ(changed({10, 100, 150, 240}, shift), (std::vector<double>{100, 77, 240, 77}));
}

TEST_F(ImageOp, PatchesAreChannelsOfRows) {
  const Picture picture = drawn_picture(6, 6);
  const Tensor patches = augmented(ctx, {picture}, {whole_picture(picture)}, plain_output(6, 3));
  const auto values = to_doubles(patches.view());
  // Patch 1 is at the upper right; its channel 2, row 1, column 0 is pixel (3, 1).
  EXPECT_NEAR(values[1 * 27 + 2 * 9 + 1 * 3 + 0], picture.levels[(1 * 6 + 3) * 3 + 2], 1e-3);
  // Patch 2 is at the lower left; its channel 0, row 2, column 1 is pixel (1, 5).
  EXPECT_NEAR(values[2 * 27 + 0 * 9 + 2 * 3 + 1], picture.levels[(5 * 6 + 1) * 3], 1e-3);
}

TEST_F(ImageOp, AnImageWithoutAPartnerIsLeftAlone) {
  const Picture picture = drawn_picture(6, 6);
  ImageAugmentation mixed = whole_picture(picture);
  mixed.mix = ImageMix::mixup;
  mixed.weight = 0.25F;
  const ImageOutput output = plain_output(6, 3);
  EXPECT_TRUE(same_bits(augmented(ctx, {picture}, {mixed}, output).view(),
                        augmented(ctx, {picture}, {whole_picture(picture)}, output).view()));
}

TEST_F(ImageOp, APartnerMayBeFarAwayOrHaveNoPatches) {
  std::vector<Picture> pictures;
  std::vector<ImageAugmentation> augmentations;
  for (int i = 0; i < 4; ++i) {
    pictures.push_back(drawn_picture(6, 6, 100, i));
    augmentations.push_back(whole_picture(pictures.back()));
  }
  augmentations[0].mix = augmentations[1].mix = ImageMix::mixup;
  augmentations[0].weight = augmentations[1].weight = 0.25F;
  augmentations[0].partner = 2;
  augmentations[1].partner = 3;
  const ImageOutput output = plain_output(6, 6, 1);
  const auto alone =
      to_doubles(augmented(ctx, pictures, {4, whole_picture(pictures[0])}, output).view());

  const auto found =
      to_doubles(augmented(ctx, pictures, augmentations, output, DType::f32, 3).view());

  ASSERT_EQ(found.size(), 3 * 36U);
  for (std::size_t i = 0; i < 36; ++i) {
    EXPECT_NEAR(found[i], 0.25 * alone[i] + 0.75 * alone[2 * 36 + i], 1e-3);
    EXPECT_NEAR(found[36 + i], 0.25 * alone[36 + i] + 0.75 * alone[3 * 36 + i], 1e-3);
    EXPECT_EQ(found[2 * 36 + i], alone[2 * 36 + i]);
  }
}

TEST_F(ImageOp, StoredTypesAreRoundedF32) {
  const Picture picture = drawn_picture(20, 15);
  ImageOutput output;
  output.size = 16;
  output.patch = 8;
  const auto exact = to_doubles(augmented(ctx, {picture}, {whole_picture(picture)}, output).view());
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor stored = augmented(ctx, {picture}, {whole_picture(picture)}, output, dtype);
    const Tensor expected = tensor_of(dtype, stored.view().shape(), exact);
    EXPECT_TRUE(same_bits(stored.view(), expected.view())) << name_of(dtype);
  }
}

TEST_F(ImageOp, ARowMayHaveBytesAfterItsPixels) {
  const Picture picture = drawn_picture(10, 8);
  Picture wide{10, 8, {}};
  for (int y = 0; y < 8; ++y) {
    const auto row = picture.levels.begin() + y * 30;
    wide.levels.insert(wide.levels.end(), row, row + 30);
    wide.levels.insert(wide.levels.end(), 7, std::uint8_t{255});
  }
  const ImageOutput output = plain_output(4, 2);
  SourceImage source = wide.source();
  source.row_bytes = 37;
  Tensor scratch(Device::cpu, DType::u8, {static_cast<Dim>(augment_scratch_bytes(1, output))});
  Tensor patches = poisoned(DType::f32, patches_shape(1, output));
  augment_images(ctx, struct_tensor<SourceImage>({source}).view(),
                 struct_tensor<ImageAugmentation>({whole_picture(picture)}).view(), output,
                 scratch.view(), patches.view());
  EXPECT_TRUE(same_bits(patches.view(),
                        augmented(ctx, {picture}, {whole_picture(picture)}, output).view()));
}

TEST_F(ImageOp, ShapesThatDisagreeAreNamed) {
  const Picture picture = drawn_picture(6, 6);
  const auto run = [&](const ImageOutput& output, const Shape& shape, Dim scratch_bytes) {
    Tensor scratch(Device::cpu, DType::u8, {scratch_bytes});
    Tensor patches = poisoned(DType::f32, shape);
    augment_images(ctx, struct_tensor<SourceImage>({picture.source()}).view(),
                   struct_tensor<ImageAugmentation>({whole_picture(picture)}).view(), output,
                   scratch.view(), patches.view());
  };
  const ImageOutput output = plain_output(6, 3);
  expect_error_naming("output", [&] { run(plain_output(6, 4), {1, 1, 48}, 1000); });
  expect_error_naming("channels", [&] { run(plain_output(6, 3, 2), {1, 4, 18}, 1000); });
  expect_error_naming("patches", [&] { run(output, {1, 4, 26}, 1000); });
  expect_error_naming("sources", [&] { run(output, {2, 4, 27}, 1000); });
  expect_error_naming("scratch", [&] { run(output, {1, 4, 27}, 10); });
}

}  // namespace
}  // namespace hyperslab::ops
