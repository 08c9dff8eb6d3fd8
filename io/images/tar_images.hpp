// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dataset/mapped_file.hpp"
#include "hyperslab/io/images.hpp"

namespace hyperslab::io {

/// Position and label of an image: a row of the file index.npy.
struct ImageRow {
  std::int64_t shard = 0;
  std::int64_t offset = 0;  ///< bytes from the shard's start
  std::int64_t bytes = 0;
  std::int64_t label = 0;
};
static_assert(sizeof(ImageRow) == 32);

struct ImageFile {
  std::string path;
  MappedFile file;
};

/// Maps them in their order. Throws Error(data).
[[nodiscard]] std::vector<ImageFile> map_image_files(const std::vector<std::string>& paths);

/// Files and index of an image set.
struct ImageFiles {
  std::vector<ImageFile> shards;
  std::vector<ImageFile> others;     ///< files that must not change either
  std::vector<ImageRow> own_rows;    ///< rows of an index made at opening
  std::span<const ImageRow> rows;    ///< those, or the mapped ones of a file
  std::vector<std::string> classes;  ///< in the order of the labels
  std::string format;                ///< "tar", "packed"
  std::int64_t other_files = 0;      ///< in tars: no images by their names
};

/// Images in memory-mapped tar files.
class TarImages final : public ImageSet {
 public:
  /// Throws Error(data) if there is no image, or if a row lies outside of its shard or has a label
  /// that is not below `classes`.
  TarImages(ImageFiles files, std::int64_t classes);

  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  [[nodiscard]] std::span<const std::byte> bytes(std::int64_t index) const override;
  [[nodiscard]] std::string name(std::int64_t index) const override;
  [[nodiscard]] const std::vector<std::string>& classes() const override { return files_.classes; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override;
  [[nodiscard]] std::vector<TokenFileSummary> files() const override;
  void require_unchanged() const override;

 private:
  /// " of 3 classes, 1 of them without one"; empty if the files name none.
  [[nodiscard]] std::string classes_text() const;
  void require_rows(std::int64_t classes) const;
  [[nodiscard]] const ImageRow& row(std::int64_t index) const;
  /// One hash for the content of each shard.
  [[nodiscard]] std::vector<std::uint64_t> shard_hashes() const;

  ImageFiles files_;
  mutable std::once_flag fingerprint_once_;
  mutable std::uint64_t fingerprint_ = 0;
};

}  // namespace hyperslab::io
