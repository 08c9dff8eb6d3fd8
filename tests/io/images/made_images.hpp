// SPDX-License-Identifier: Apache-2.0
// Small images that the tests make themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperslab::test {

using Pixels = std::vector<std::uint8_t>;

/// A smooth pattern with some edges: (height, width, channels).
[[nodiscard]] Pixels pattern(int width, int height, int channels);

enum class JpegKind : std::uint8_t { colour, colour_444, grey, cmyk, progressive };
/// Of pattern().
[[nodiscard]] std::string make_jpeg(int width, int height, JpegKind kind = JpegKind::colour);

struct PngKind {
  int colour_type = 2;  ///< 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA
  int bits = 8;
  bool interlaced = false;
};
/// A PNG of these rows, as libpng takes them: (height, bytes of a row).
[[nodiscard]] std::string make_png(int width, int height, const Pixels& rows, const PngKind& kind);

/// Of pattern() in RGB.
[[nodiscard]] std::string make_ppm(int width, int height);

/// Full decoding by libjpeg-turbo itself.
[[nodiscard]] Pixels turbojpeg_decoded(std::string_view jpeg, int width, int height);

/// A tar header of ustar and the content, padded. `type`: '0' file, '2' symbolic link, ...
[[nodiscard]] std::string tar_member(const std::string& name, std::string_view content,
                                     char type = '0');
/// Members and the blocks at the end.
[[nodiscard]] std::string tar(std::initializer_list<std::string> members);

[[nodiscard]] inline std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace hyperslab::test
