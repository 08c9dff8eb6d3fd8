// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hyperslab/image/image_size.hpp"

namespace hyperslab::io {

/// Which part of an input that has two is packed.
enum class ImageSplit : std::uint8_t { unnamed, train, validation };

/// Inputs, output and options of pack_images().
struct ImagePacking {
  /// Inputs of one kind: folders of class folders; TinyImageNet's folder; folders or files of
  /// CIFAR's binary version; tar files, globs of them, or folders with them.
  std::vector<std::string> inputs;
  std::string output;  ///< a new folder
  ImageSplit split = ImageSplit::unnamed;
  /// Names of the classes in the order of their labels: a text file, one a line, or a packed
  /// folder; empty: as the input has them.
  std::string classes;
  std::int64_t shard_bytes = 256LL << 20;  ///< a shard ends before it would grow beyond
  bool skip_broken = false;                ///< false: a broken image is an error
  bool verify = true;                      ///< decode every image once; false: read its header
  int threads = 1;
};

struct BrokenImage {
  std::string name;
  std::string problem;  ///< "expected a whole JPEG image, found ..."
};

/// Contents of a folder that pack_images() wrote.
struct PackedImages {
  std::string layout;  ///< "class folders"
  std::int64_t images = 0;
  std::int64_t image_bytes = 0;
  std::int64_t shards = 0;
  std::vector<std::string> classes;        ///< names in the order of the labels; may be empty
  std::vector<std::int64_t> class_images;  ///< images of each label
  image::ImageSize least;                  ///< width and height, each the smallest of all images
  image::ImageSize most;
  std::vector<BrokenImage> broken;
  std::int64_t other_files = 0;  ///< that are no images by their names
};

/// Writes the images, encoded as they are (CIFAR's as PPM), into shards with an index that
/// open_images() takes. The folder appears when it is complete. Throws Error(usage) for an output
/// that exists and a split that is missing or too much, Error(data) for inputs, also for broken
/// images that are not to be skipped (the first are named, all are counted), Error(storage) for
/// files that cannot be read or written.
PackedImages pack_images(const ImagePacking& packing);

}  // namespace hyperslab::io
