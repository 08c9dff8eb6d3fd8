// SPDX-License-Identifier: Apache-2.0
// Inputs that pack-images reads; private to io.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/io/pack_images.hpp"

namespace hyperslab::io {

/// Images of an input in the order in which they are packed. Functions that are const may be called
/// by several threads at once.
class PackSource {
 public:
  virtual ~PackSource() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t label(std::int64_t index) const = 0;
  /// Its file, for messages.
  [[nodiscard]] virtual std::string name(std::int64_t index) const = 0;
  /// The last part of its name in a shard.
  [[nodiscard]] virtual std::string file_name(std::int64_t index) const = 0;
  /// Its encoded bytes. Throws Error(storage) or Error(data).
  [[nodiscard]] virtual std::string read(std::int64_t index) const = 0;
  [[nodiscard]] virtual const char* layout() const = 0;
  [[nodiscard]] virtual std::int64_t other_files() const { return 0; }

  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }

 protected:
  explicit PackSource(std::vector<std::string> classes) : classes_(std::move(classes)) {}

 private:
  std::vector<std::string> classes_;  ///< in the order of the labels
};

/// Throws Error(data): "image folder 'PATH': expected W, found F; REMEDY".
[[noreturn]] void fail_folder(const std::string& path, const std::string& expected,
                              const std::string& found, const std::string& remedy);

/// Names of files and folders in a folder, sorted by their bytes; without those that begin with a
/// dot. Throws Error(data).
[[nodiscard]] std::vector<std::string> entries_of(const std::string& folder);
[[nodiscard]] bool is_folder(const std::string& path);
[[nodiscard]] bool is_file(const std::string& path);
/// Lines that are not empty, without blanks at their ends. Throws Error(storage).
[[nodiscard]] std::vector<std::string> lines_of(const std::string& path);

/// The input's kind by the files there. Throws as pack_images().
[[nodiscard]] std::unique_ptr<PackSource> open_pack_source(const ImagePacking& packing);

// One kind each. `classes`: names that were asked for, or empty.
[[nodiscard]] std::unique_ptr<PackSource> open_class_folders(
    const std::vector<std::string>& folders, const std::vector<std::string>& classes);
[[nodiscard]] std::unique_ptr<PackSource> open_tiny_imagenet(const std::string& folder,
                                                             ImageSplit split);
[[nodiscard]] std::unique_ptr<PackSource> open_cifar(const std::vector<std::string>& files,
                                                     const std::vector<std::string>& classes);
[[nodiscard]] std::unique_ptr<PackSource> open_tar_source(const std::vector<std::string>& files,
                                                          const std::vector<std::string>& classes);

}  // namespace hyperslab::io
