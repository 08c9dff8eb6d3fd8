// SPDX-License-Identifier: Apache-2.0
#include "images/png.hpp"

#include <fmt/format.h>
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>

#include "images/image_bytes.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kHeaderEnd = 8 + 8 + 13;  // signature, length and name of IHDR, its body
constexpr png_alloc_size_t kMostChunkBytes = 8 << 20;

/// State of one decoding; the functions that libpng calls find it.
struct Png {
  std::span<const std::byte> rest;
  std::array<char, 96> problem{};
  std::jmp_buf after_error;
};

void on_error(png_structp png, png_const_charp text) {
  auto* const state = static_cast<Png*>(png_get_error_ptr(png));
  std::strncpy(state->problem.data(), text, state->problem.size() - 1);
  std::longjmp(state->after_error, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*text*/) {}  // a warning changes no pixel

void on_read(png_structp png, png_bytep out, std::size_t bytes) {
  auto* const state = static_cast<Png*>(png_get_io_ptr(png));
  if (state->rest.size() < bytes) png_error(png, "the bytes end before the image");
  std::memcpy(out, state->rest.data(), bytes);
  state->rest = state->rest.subspan(bytes);
}

void convert_to_rgb(png_structp png) {
  png_set_expand(png);    // palette, fewer than 8 bits
  png_set_strip_16(png);  // the high byte
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

/// False if libpng found an error, which `state` then has. No object here has a destructor that a
/// jump out of libpng would pass over.
bool read_pixels(png_structp png, png_infop info, Png& state, const ImageHeader& header,
                 std::uint8_t* rgb) {
  if (setjmp(state.after_error) != 0) return false;
  png_set_read_fn(png, &state, on_read);
  png_set_user_limits(png, static_cast<png_uint_32>(header.width),
                      static_cast<png_uint_32>(header.height));
  png_set_chunk_malloc_max(png, kMostChunkBytes);
  png_read_info(png, info);
  convert_to_rgb(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  const std::size_t row_bytes = 3 * static_cast<std::size_t>(header.width);
  if (png_get_rowbytes(png, info) != row_bytes ||
      png_get_image_height(png, info) != static_cast<png_uint_32>(header.height)) {
    png_error(png, "a second header of another size");
  }
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(header.height); ++row) {
      png_read_row(png, rgb + row * row_bytes, nullptr);
    }
  }
  png_read_end(png, nullptr);
  return true;
}

/// Owns libpng's two structs.
class Reader {
 public:
  explicit Reader(Png& state)
      : png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, on_error, on_warning)),
        info_(png_ == nullptr ? nullptr : png_create_info_struct(png_)) {
    if (info_ == nullptr) png_destroy_read_struct(&png_, nullptr, nullptr);
    require(info_ != nullptr, "libpng gave no decoder");
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  Reader(Reader&&) = delete;
  Reader& operator=(Reader&&) = delete;

  [[nodiscard]] png_structp png() const { return png_; }
  [[nodiscard]] png_infop info() const { return info_; }

 private:
  png_structp png_;
  png_infop info_;
};

}  // namespace

ImageHeader read_png_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderEnd || text_of(bytes).substr(12, 4) != "IHDR") {
    fail_image("a whole PNG image", "one that ends in its header");
  }
  const std::uint32_t width = big_endian_32(bytes, 16);
  const std::uint32_t height = big_endian_32(bytes, 20);
  if (width > kMostImagePixels || height > kMostImagePixels) {
    fail_image(fmt::format("at most {} pixels", kMostImagePixels),
               fmt::format("{} x {}", width, height));
  }
  return {.width = static_cast<std::int32_t>(width),
          .height = static_cast<std::int32_t>(height),
          .format = ImageFormat::png};
}

void decode_png(std::span<const std::byte> bytes, const ImageHeader& header,
                std::span<std::uint8_t> rgb) {
  Png state;
  state.rest = bytes;
  const Reader reader(state);
  if (!read_pixels(reader.png(), reader.info(), state, header, rgb.data())) {
    fail_image("a whole PNG image", state.problem.data());
  }
}

}  // namespace hyperslab::io
