// SPDX-License-Identifier: Apache-2.0
#include "io/images/made_images.hpp"

#include <png.h>
#include <turbojpeg.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace hyperslab::test {

Pixels pattern(int width, int height, int channels) {
  Pixels pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const int edge = (x / 5 + y / 7) % 2 == 0 ? 40 : 0;
        pixels.push_back(static_cast<std::uint8_t>((x * (3 + c) + y * (5 - c) + edge) % 216 + 20));
      }
    }
  }
  return pixels;
}

std::string make_jpeg(int width, int height, JpegKind kind) {
  const bool cmyk = kind == JpegKind::cmyk;
  const Pixels pixels = pattern(width, height, cmyk ? 4 : 3);
  int subsampling = TJSAMP_420;
  if (kind == JpegKind::grey) subsampling = TJSAMP_GRAY;
  if (cmyk || kind == JpegKind::colour_444) subsampling = TJSAMP_444;
  const tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long bytes = 0;
  const int status =
      tjCompress2(handle, pixels.data(), width, 0, height, cmyk ? TJPF_CMYK : TJPF_RGB, &out,
                  &bytes, subsampling, 90, kind == JpegKind::progressive ? TJFLAG_PROGRESSIVE : 0);
  std::string jpeg(reinterpret_cast<const char*>(out), bytes);
  tjFree(out);
  tjDestroy(handle);
  if (status != 0) throw std::runtime_error("no JPEG");
  return jpeg;
}

std::string make_png(int width, int height, const Pixels& rows, const PngKind& kind) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::string out;
  png_set_write_fn(
      png, &out,
      [](png_structp writer, png_bytep data, std::size_t bytes) {
        static_cast<std::string*>(png_get_io_ptr(writer))
            ->append(reinterpret_cast<const char*>(data), bytes);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               kind.bits, kind.colour_type, kind.interlaced ? PNG_INTERLACE_ADAM7 : 0, 0, 0);
  if (kind.colour_type == PNG_COLOR_TYPE_PALETTE) {
    const png_color palette[] = {{10, 20, 30}, {200, 100, 50}, {0, 255, 0}, {255, 255, 255}};
    png_set_PLTE(png, info, palette, 4);
  }
  png_write_info(png, info);
  const std::size_t row_bytes = rows.size() / static_cast<std::size_t>(height);
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) {
    pointers.push_back(
        const_cast<png_bytep>(rows.data() + static_cast<std::size_t>(y) * row_bytes));
  }
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

std::string make_ppm(int width, int height) {
  const Pixels pixels = pattern(width, height, 3);
  return "P6\n" + std::to_string(width) + " " + std::to_string(height) + "\n255\n" +
         std::string(pixels.begin(), pixels.end());
}

Pixels turbojpeg_decoded(std::string_view jpeg, int width, int height) {
  Pixels pixels(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  const tjhandle handle = tjInitDecompress();
  const int status = tjDecompress2(handle, reinterpret_cast<const unsigned char*>(jpeg.data()),
                                   jpeg.size(), pixels.data(), width, 0, height, TJPF_RGB, 0);
  tjDestroy(handle);
  if (status != 0) throw std::runtime_error("not decoded");
  return pixels;
}

std::string tar_member(const std::string& name, std::string_view content, char type) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, std::string_view text) {
    std::memcpy(header.data() + at, text.data(), text.size());
  };
  char number[16];
  put(0, name.substr(0, 100));
  put(100, "0000644");
  std::snprintf(number, sizeof number, "%011o", static_cast<unsigned>(content.size()));
  put(124, number);
  header[156] = type;
  put(257, std::string_view("ustar\00000", 8));
  put(148, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(number, sizeof number, "%06o", sum);
  put(148, std::string_view(number, 7));
  std::string out = header + std::string(content);
  out.resize((out.size() + 511) / 512 * 512, '\0');
  return out;
}

std::string tar(std::initializer_list<std::string> members) {
  std::string out;
  for (const std::string& member : members) out += member;
  return out + std::string(1024, '\0');
}

}  // namespace hyperslab::test
