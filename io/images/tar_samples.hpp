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

/// The name of a member without its folders.
[[nodiscard]] inline std::string_view file_of(std::string_view name) {
  return name.substr(name.rfind('/') + 1);
}

/// An image of a tar and its class as the tar gives it.
struct TarSample {
  std::string name;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::optional<std::int64_t> label;  ///< number in the member .cls with the same stem
};

struct TarContent {
  std::vector<TarSample> samples;   ///< in the order of the tar
  std::vector<std::string> others;  ///< names of folders, which end in '/', and of other files
};

/// Throws Error(data), also for two members of one name.
[[nodiscard]] TarContent read_tar_content(const ImageFile& tar);

/// Images of several tars and their labels: from .cls if there are any, else by class folders.
/// Throws Error(data) that names an image without a label.
[[nodiscard]] ImageFiles index_tars(std::vector<ImageFile> tars);

/// Labels by class folders, as a folder with the content of the tar has them: all folders beside
/// each other that hold images at some depth, or nothing, are classes, sorted by name over all
/// tars. `contents`: one for each of files.shards. Throws Error(data) for images that do not lie in
/// folders beside each other.
void label_by_folders(ImageFiles& files, const std::vector<TarContent>& contents);

}  // namespace hyperslab::io
