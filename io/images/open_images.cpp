// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "dataset/glob_files.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/images.hpp"
#include "images/drawn_images.hpp"
#include "images/packed_set.hpp"
#include "images/tar_images.hpp"
#include "images/tar_samples.hpp"

namespace hyperslab::io {
namespace {

/// Class folders number the classes, so one too few or many would shift labels in silence.
void require_all_folders(const ImageFiles& files, std::int64_t classes) {
  const auto found = static_cast<std::int64_t>(files.classes.size());
  if (found == 0 || found == classes) return;
  fail_file(
      files.shards.front().path,
      fmt::format("{} class folders (model.classes) in the tars together", classes),
      fmt::format("{}, from '{}' to '{}'", found, files.classes.front(), files.classes.back()),
      "correct model.classes, or pack the images with the classes named", kImageFile);
}

std::unique_ptr<ImageSet> open_tars(const std::vector<std::string>& paths,
                                    const ImageSetOptions& options) {
  ImageFiles files = index_tars(map_image_files(paths));
  require_all_folders(files, options.classes);
  return std::make_unique<TarImages>(std::move(files), options.classes);
}

}  // namespace

std::unique_ptr<ImageSet> open_images(const std::vector<std::string>& paths,
                                      const ImageSetOptions& options) {
  require(options.classes > 0 && options.classes <= std::numeric_limits<std::int32_t>::max(),
          "images need classes");
  if (paths == std::vector<std::string>{"synthetic"}) {
    return std::make_unique<DrawnImages>(options);
  }
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (path == "synthetic") {
      throw Error(
          ExitCode::data,
          "synthetic images: expected 'synthetic' alone, found it beside files; remove one");
    }
    for (std::string& file : glob_files(path, kImageFile)) files.push_back(std::move(file));
  }
  if (files.empty()) {
    throw Error(ExitCode::data,
                "no image files: expected a packed folder, tar files or 'synthetic' in section "
                "data, found an empty list; name the files");
  }
  for (const std::string& file : files) {
    if (!std::filesystem::is_directory(file)) continue;
    if (!is_packed_set(file)) {
      fail_file(file, "a folder of pack-images or a tar file", "another folder",
                fmt::format("pack it first: hyperslab pack-images --input {} --output DIR", file),
                kImageFile);
    }
    if (files.size() > 1) {
      fail_file(file, "one packed folder alone, or tar files",
                fmt::format("{} paths", files.size()), "pack all images into one folder",
                kImageFile);
    }
    return std::make_unique<TarImages>(open_packed_set(file), options.classes);
  }
  return open_tars(files, options);
}

void require_same_classes(const ImageSet& train, const ImageSet& validation) {
  const auto& expected = train.classes();
  const auto& found = validation.classes();
  if (expected.empty() || found.empty() || expected == found) return;
  const auto first = std::ranges::mismatch(expected, found);
  const auto name = [](const auto& names, auto at) {
    return at == names.end() ? std::string("none") : fmt::format("'{}'", *at);
  };
  throw Error(
      ExitCode::data,
      fmt::format(
          "{}: expected the classes of the training images, {} as number {}, found {}; pack "
          "the validation images with --classes and the packed training folder",
          validation.description(), name(expected, first.in1), first.in1 - expected.begin(),
          name(found, first.in2)));
}

}  // namespace hyperslab::io
