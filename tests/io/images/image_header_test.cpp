// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/images.hpp"
#include "io/images/made_images.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using io::ImageFormat;
using io::ImageHeader;

ImageHeader header_of(std::string_view image) { return io::read_image_header(bytes_in(image)); }

void expect_refused(const std::string& image, const std::string& why) {
  expect_error(ExitCode::data, {why}, [&] { (void)header_of(image); });
}

/// The PNG with other numbers in IHDR; its checksum is not looked at by the header's reader.
std::string png_of_size(std::uint32_t width, std::uint32_t height) {
  std::string png = make_png(4, 4, pattern(4, 4, 3), {});
  for (std::size_t i = 0; i < 4; ++i) {
    png[16 + i] = static_cast<char>(width >> (24 - 8 * i));
    png[20 + i] = static_cast<char>(height >> (24 - 8 * i));
  }
  return png;
}

TEST(ImageHeader, ReportsSizeAndFormat) {
  const ImageHeader jpeg = header_of(make_jpeg(37, 21));
  const ImageHeader png = header_of(make_png(9, 5, pattern(9, 5, 3), {}));
  const ImageHeader ppm = header_of(make_ppm(7, 3));

  EXPECT_EQ(jpeg.size(), (image::ImageSize{37, 21}));
  EXPECT_EQ(jpeg.format, ImageFormat::jpeg);
  EXPECT_EQ(png.size(), (image::ImageSize{9, 5}));
  EXPECT_EQ(png.format, ImageFormat::png);
  EXPECT_EQ(ppm.size(), (image::ImageSize{7, 3}));
  EXPECT_EQ(ppm.format, ImageFormat::ppm);
}

TEST(ImageHeader, LeavesToTheGpuWhatItDecodes) {
  EXPECT_TRUE(header_of(make_jpeg(16, 16)).decodes_on_gpu);
  EXPECT_TRUE(header_of(make_jpeg(16, 16, JpegKind::colour_444)).decodes_on_gpu);
  EXPECT_TRUE(header_of(make_jpeg(16, 16, JpegKind::grey)).decodes_on_gpu);
  EXPECT_FALSE(header_of(make_jpeg(16, 16, JpegKind::cmyk)).decodes_on_gpu);
  EXPECT_FALSE(header_of(make_jpeg(16, 16, JpegKind::progressive)).decodes_on_gpu);
  EXPECT_FALSE(header_of(make_ppm(16, 16)).decodes_on_gpu);
  auto cut = make_jpeg(16, 16);
  cut.pop_back();
  EXPECT_FALSE(header_of(cut).decodes_on_gpu);
}

/// A progressive JPEG of one block whose last scan comes so many times more, and whose header says
/// that it has these sides.
std::string with_scans(int side, std::size_t more) {
  std::string jpeg = make_jpeg(8, 8, JpegKind::progressive);
  const std::size_t frame = jpeg.find("\xFF\xC2");
  for (const std::size_t at : {frame + 5, frame + 7}) {
    jpeg[at] = static_cast<char>(side >> 8);
    jpeg[at + 1] = static_cast<char>(side & 0xFF);
  }
  const std::size_t last = jpeg.rfind("\xFF\xDA");
  const std::size_t end = jpeg.size() - 2;
  const std::string scan = jpeg.substr(last, end - last);
  for (std::size_t i = 0; i < more; ++i) jpeg.insert(end, scan);
  return jpeg;
}

TEST(ImageHeader, RefusesJpegsWhoseScansTakeSeconds) {
  EXPECT_EQ(header_of(with_scans(8000, 6)).width, 8000);
  EXPECT_EQ(header_of(with_scans(64, 490)).width, 64);
  expect_refused(with_scans(8000, 100),
                 "expected a JPEG whose scans times pixels are at most 1073741824, found 110 scans "
                 "of 8000 x 8000");
}

TEST(ImageHeader, CountsNoScansBehindTheImage) {
  const std::string jpeg = with_scans(8000, 0);
  std::string appended;
  for (int i = 0; i < 300; ++i) appended += std::string("\xFF\xDA\0\x02", 4);

  EXPECT_EQ(header_of(jpeg + appended).width, 8000);
}

TEST(ImageHeader, RefusesOtherBytes) {
  expect_refused("", "found no bytes");
  expect_refused("GIF89a", "begins with the bytes 47 49 46 38");
  expect_refused("P", "begins with the bytes 50");
}

TEST(ImageHeader, RefusesHeadersThatAreCut) {
  const std::string jpeg = make_jpeg(16, 16);
  expect_refused(jpeg.substr(0, 2), "ends in its header");
  expect_refused(jpeg.substr(0, 40), "ends in its header");
  expect_refused(make_png(4, 4, pattern(4, 4, 3), {}).substr(0, 20), "ends in its header");
  expect_refused("P6\n4", "expected a PPM header");
  expect_refused("P6\n4 4\n255", "expected a PPM header");
}

TEST(ImageHeader, RefusesHugeAndEmptySizes) {
  expect_refused(png_of_size(1U << 20, 1U << 20), "1048576 x 1048576");
  expect_refused(png_of_size(0x80000001U, 1), "2147483649 x 1");
  expect_refused(png_of_size(0, 4), "0 x 4");
  expect_refused("P6 9999999999999999999999 1 255\n", "at most 67108864 pixels");
  expect_refused("P6 8192 8193 255\n", "8192 x 8193");
}

TEST(ImageHeader, RefusesWhatIsNotSupported) {
  std::string bits = make_jpeg(16, 16);
  const std::size_t frame = bits.find("\xFF\xC0");
  std::string process = bits;
  bits[frame + 4] = 12;
  process[frame + 1] = '\xC9';

  expect_refused(bits, "12 bits");
  expect_refused(process, "another process");
  expect_refused("P6 2 2 65535\n", "8 bits");
}

}  // namespace
}  // namespace hyperslab::test
