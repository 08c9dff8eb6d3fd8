// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "images/tar_images.hpp"

namespace hyperslab::io {

/// True if a name ends in .jpg, .jpeg, .png or .ppm, in letters of any case; not the twin files
/// "._x.jpg" that macOS adds.
[[nodiscard]] bool has_image_suffix(std::string_view name);

/// The folder that holds the file, or the one around it if that is called "images"; empty if there
/// is none.
[[nodiscard]] std::string_view class_folder(std::string_view name);

/// An image of a tar and what the tar says of its class.
struct TarSample {
  std::string name;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::optional<std::int64_t> label;  ///< of the member .cls with the same stem
};

/// The images of a tar in its order. Throws Error(data).
[[nodiscard]] std::vector<TarSample> read_tar_samples(const ImageFile& tar);

/// Images of several tars and their labels: those of .cls if there are any, else the place of the
/// class folder among all, sorted. Throws Error(data) that names an image without a label.
[[nodiscard]] ImageFiles index_tars(std::vector<ImageFile> tars);

}  // namespace hyperslab::io
