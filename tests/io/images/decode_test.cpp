// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/images.hpp"
#include "io/images/made_images.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using image::ImageSize;

Pixels decoded_to(std::string_view image, ImageSize size) {
  io::ImageDecoder decoder;
  Pixels rgb(static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) * 3);
  decoder.decode(bytes_in(image), io::read_image_header(bytes_in(image)), size, rgb);
  return rgb;
}

Pixels decoded(std::string_view image) {
  return decoded_to(image, io::read_image_header(bytes_in(image)).size());
}

void expect_broken(const std::string& image, const std::string& why) {
  expect_error(ExitCode::data, {why}, [&] { (void)decoded(image); });
}

TEST(Decode, GivesTheBytesOfLibjpegTurbo) {
  for (const JpegKind kind :
       {JpegKind::colour, JpegKind::colour_444, JpegKind::grey, JpegKind::progressive}) {
    const std::string jpeg = make_jpeg(37, 21, kind);

    EXPECT_EQ(decoded(jpeg), turbojpeg_decoded(jpeg, 37, 21));
  }
}

TEST(Decode, RepeatsGrey) {
  const Pixels rgb = decoded(make_jpeg(16, 8, JpegKind::grey));

  for (std::size_t i = 0; i < rgb.size(); i += 3) {
    EXPECT_EQ(rgb[i], rgb[i + 1]);
    EXPECT_EQ(rgb[i], rgb[i + 2]);
  }
}

TEST(Decode, MultipliesCmykByBlack) {
  const Pixels rgb = decoded(make_jpeg(16, 8, JpegKind::cmyk));
  const Pixels cmyk = pattern(16, 8, 4);

  double difference = 0;
  for (std::size_t i = 0; i < 16 * 8; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      difference += std::abs(cmyk[4 * i + c] * cmyk[4 * i + 3] / 255.0 - rgb[3 * i + c]);
    }
  }
  EXPECT_LT(difference / (3 * 16 * 8), 6);  // of JPEG's loss
}

TEST(Decode, ShrinksJpegsByHalves) {
  const std::string jpeg = make_jpeg(101, 67);
  const io::ImageHeader header = io::read_image_header(bytes_in(jpeg));
  const io::ImageDecoder decoder;

  EXPECT_EQ(decoder.decoded_size(header, 101, 67), (ImageSize{101, 67}));
  EXPECT_EQ(decoder.decoded_size(header, 200, 200), (ImageSize{101, 67}));
  EXPECT_EQ(decoder.decoded_size(header, 51, 34), (ImageSize{51, 34}));
  EXPECT_EQ(decoder.decoded_size(header, 52, 34), (ImageSize{101, 67}));
  EXPECT_EQ(decoder.decoded_size(header, 20, 17), (ImageSize{26, 17}));
  EXPECT_EQ(decoder.decoded_size(header, 1, 1), (ImageSize{13, 9}));
}

TEST(Decode, ShrunkImagesAreMeansOfTheWhole) {
  const std::string jpeg = make_jpeg(64, 48, JpegKind::colour_444);
  const Pixels whole = decoded(jpeg);

  const Pixels half = decoded_to(jpeg, {32, 24});

  double difference = 0;
  for (std::size_t y = 0; y < 24; ++y) {
    for (std::size_t x = 0; x < 32 * 3; ++x) {
      const std::size_t at = 2 * y * 64 * 3 + 2 * (x / 3) * 3 + x % 3;
      const int sum = whole[at] + whole[at + 3] + whole[at + 64 * 3] + whole[at + 64 * 3 + 3];
      difference += std::abs(sum / 4.0 - half[y * 32 * 3 + x]);
    }
  }
  EXPECT_LT(difference / static_cast<double>(half.size()), 4);
}

TEST(Decode, OneDecoderTakesAnyOrder) {
  io::ImageDecoder decoder;
  const std::vector<std::string> images = {make_jpeg(40, 30), make_ppm(5, 4),
                                           make_jpeg(24, 16, JpegKind::cmyk), make_jpeg(8, 8)};
  for (int round = 0; round < 2; ++round) {
    for (const std::string& image : images) {
      const io::ImageHeader header = io::read_image_header(bytes_in(image));
      Pixels rgb(static_cast<std::size_t>(header.width * header.height * 3));
      decoder.decode(bytes_in(image), header, header.size(), rgb);
      EXPECT_EQ(rgb, decoded(image));
    }
  }
}

TEST(Decode, ReadsPng) {
  const Pixels rgb = pattern(9, 5, 3);

  EXPECT_EQ(decoded(make_png(9, 5, rgb, {})), rgb);
  EXPECT_EQ(decoded(make_png(9, 5, rgb, {.interlaced = true})), rgb);
}

TEST(Decode, TurnsPngOfOtherKindsToRgb) {
  const Pixels grey = {1, 2, 3, 250};
  const Pixels sixteen = {1, 200, 2, 255, 3, 128, 250, 0};  // high byte first
  const Pixels expected = {1, 1, 1, 2, 2, 2, 3, 3, 3, 250, 250, 250};

  EXPECT_EQ(decoded(make_png(2, 2, grey, {.colour_type = 0})), expected);
  EXPECT_EQ(decoded(make_png(2, 2, sixteen, {.colour_type = 0, .bits = 16})), expected);
  EXPECT_EQ(decoded(make_png(2, 1, {0xD0}, {.colour_type = 0, .bits = 2})),
            (Pixels{255, 255, 255, 85, 85, 85}));
  EXPECT_EQ(decoded(make_png(2, 1, {1, 0}, {.colour_type = 3})),
            (Pixels{200, 100, 50, 10, 20, 30}));
  EXPECT_EQ(decoded(make_png(1, 1, {9, 8, 7, 0}, {.colour_type = 6})), (Pixels{9, 8, 7}));
  EXPECT_EQ(decoded(make_png(1, 1, {9, 100}, {.colour_type = 4})), (Pixels{9, 9, 9}));
}

TEST(Decode, ReadsPpmWithComments) {
  EXPECT_EQ(decoded(make_ppm(7, 3)), pattern(7, 3, 3));
  EXPECT_EQ(decoded("P6 # made by hand\n1\t1 # size\n255\nabc"), (Pixels{'a', 'b', 'c'}));
}

TEST(Decode, RefusesImagesThatAreCut) {
  const std::string jpeg = make_jpeg(64, 64);
  const std::string png = make_png(16, 16, pattern(16, 16, 3), {});
  const std::string ppm = make_ppm(8, 8);

  expect_broken(jpeg.substr(0, jpeg.size() / 2 + 200), "expected a whole JPEG image");
  expect_broken(jpeg.substr(0, jpeg.size() - 40), "expected a whole JPEG image");
  expect_broken(png.substr(0, png.size() / 2), "expected a whole PNG image");
  expect_broken(png.substr(0, png.size() - 13), "expected a whole PNG image");
  expect_broken(ppm.substr(0, ppm.size() - 1), "expected 192 bytes of pixels");
}

TEST(Decode, RefusesFlippedBits) {
  std::string png = make_png(16, 16, pattern(16, 16, 3), {});
  png[60] = static_cast<char>(png[60] ^ 0x10);

  expect_broken(png, "expected a whole PNG image");
}

TEST(Decode, NeverFailsOtherwiseOnDamagedBytes) {
  for (const std::string& image : {make_jpeg(32, 32), make_jpeg(32, 32, JpegKind::progressive),
                                   make_jpeg(16, 16, JpegKind::cmyk),
                                   make_png(16, 16, pattern(16, 16, 3), {.interlaced = true})}) {
    for (std::size_t at = 0; at < image.size(); at += 3) {
      std::string damaged = image;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
      try {
        const io::ImageHeader header = io::read_image_header(bytes_in(damaged));
        if (header.width <= 1024 && header.height <= 1024) (void)decoded(damaged);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::data) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::test
