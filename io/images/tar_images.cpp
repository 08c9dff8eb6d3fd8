// SPDX-License-Identifier: Apache-2.0
#include "images/tar_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dataset/fingerprint.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "images/tar_reader.hpp"

namespace hyperslab::io {
namespace {

// Blocks of all shards that the fingerprint of a large set reads. Its index, which has offset and
// length of each image, is read whole.
constexpr std::int64_t kMostBlocks = 8192;

/// The name in the header before an image.
std::string member_name(const ImageFile& shard, const ImageRow& row) {
  return tar_header_name(
      shard.file.bytes().subspan(static_cast<std::size_t>(row.offset - kTarBlock), 512));
}

bool is_inside(const ImageRow& row, std::span<const ImageFile> shards) {
  if (row.shard < 0 || row.shard >= static_cast<std::int64_t>(shards.size())) return false;
  const std::int64_t bytes = shards[static_cast<std::size_t>(row.shard)].file.size();
  return row.offset >= kTarBlock && row.bytes >= 0 && row.offset <= bytes &&
         row.bytes <= bytes - row.offset;
}

}  // namespace

std::vector<ImageFile> map_image_files(const std::vector<std::string>& paths) {
  std::vector<ImageFile> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) files.push_back({path, MappedFile(path, kImageFile)});
  return files;
}

TarImages::TarImages(ImageFiles files, std::int64_t classes) : files_(std::move(files)) {
  require(!files_.shards.empty(), "an image set without files");
  if (files_.rows.empty()) {
    fail_file(files_.shards.front().path, "images (.jpg, .jpeg, .png or .ppm)", "none",
              "name other files, or pack folders with hyperslab pack-images", kImageFile);
  }
  require_rows(classes);
}

void TarImages::require_rows(std::int64_t classes) const {
  for (std::size_t i = 0; i < files_.rows.size(); ++i) {
    const ImageRow& row = files_.rows[i];
    if (!is_inside(row, files_.shards)) {
      fail_file(files_.others.empty() ? files_.shards.front().path : files_.others.front().path,
                "images inside of their shards",
                fmt::format("shard {}, byte {}, {} bytes for image {}", row.shard, row.offset,
                            row.bytes, i),
                "pack the images again", kImageFile);
    }
    if (row.label >= 0 && row.label < classes) continue;
    const ImageFile& shard = files_.shards[static_cast<std::size_t>(row.shard)];
    fail_file(shard.path,
              fmt::format("labels below the number of classes (model.classes), {}", classes),
              fmt::format("label {} of {}", row.label, member_name(shard, row)),
              "correct model.classes or the labels", kImageFile);
  }
}

std::int64_t TarImages::size() const { return static_cast<std::int64_t>(files_.rows.size()); }

const ImageRow& TarImages::row(std::int64_t index) const {
  require(index >= 0 && index < size(), "an image beyond the end of the set");
  return files_.rows[static_cast<std::size_t>(index)];
}

std::int32_t TarImages::label(std::int64_t index) const {
  return static_cast<std::int32_t>(row(index).label);
}

std::span<const std::byte> TarImages::bytes(std::int64_t index) const {
  const ImageRow& image = row(index);
  return files_.shards[static_cast<std::size_t>(image.shard)].file.bytes().subspan(
      static_cast<std::size_t>(image.offset), static_cast<std::size_t>(image.bytes));
}

std::string TarImages::name(std::int64_t index) const {
  const ImageRow& image = row(index);
  const ImageFile& shard = files_.shards[static_cast<std::size_t>(image.shard)];
  return fmt::format("{}: {}", shard.path, member_name(shard, image));
}

std::string TarImages::classes_text() const {
  if (files_.classes.empty()) return "";
  std::vector<bool> has_image(files_.classes.size());
  for (const ImageRow& image : files_.rows) {
    const auto label = static_cast<std::size_t>(image.label);
    if (label < has_image.size()) has_image[label] = true;
  }
  const auto empty = std::ranges::count(has_image, false);
  const std::string without = empty == 0 ? "" : fmt::format(", {} of them without one", empty);
  return fmt::format(" of {} classes{}", files_.classes.size(), without);
}

std::string TarImages::description() const {
  const auto& shards = files_.shards;
  const std::string names = shards.size() == 1
                                ? shards.front().path
                                : fmt::format("{} files from {} to {}", shards.size(),
                                              shards.front().path, shards.back().path);
  const std::string others =
      files_.other_files == 0
          ? ""
          : fmt::format(" ({} files are no images by their names)", files_.other_files);
  return fmt::format("{}: {} images{}, {}{}", names, size(), classes_text(), files_.format, others);
}

std::vector<std::uint64_t> TarImages::shard_hashes() const {
  std::int64_t all = 0;
  for (const ImageFile& shard : files_.shards) all += shard.file.size();
  const std::int64_t blocks = std::clamp<std::int64_t>(
      kMostBlocks / static_cast<std::int64_t>(files_.shards.size()), 2, kFingerprintBlocks);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(files_.shards.size());
  for (const ImageFile& shard : files_.shards) {
    hashes.push_back(content_hash(shard.file.bytes(), all, blocks));
  }
  return hashes;
}

std::uint64_t TarImages::fingerprint() const {
  std::call_once(fingerprint_once_, [this] {
    std::uint64_t hash = name_hash("image files");
    for (const std::uint64_t content : shard_hashes()) hash = mixed(hash, content);
    const auto index = std::as_bytes(files_.rows);
    hash = mixed(hash, content_hash(index, static_cast<std::int64_t>(index.size())));
    for (const std::string& name : files_.classes) hash = mixed(hash, name_hash(name));
    fingerprint_ = hash;
  });
  return fingerprint_;
}

std::vector<TokenFileSummary> TarImages::files() const {
  const std::vector<std::uint64_t> hashes = shard_hashes();
  std::vector<TokenFileSummary> out;
  out.reserve(hashes.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const ImageFile& shard = files_.shards[i];
    out.push_back({shard.path, files_.format, 0, shard.file.size(), hashes[i]});
  }
  for (const ImageRow& image : files_.rows) ++out[static_cast<std::size_t>(image.shard)].tokens;
  return out;
}

void TarImages::require_unchanged() const {
  for (const auto* list : {&files_.shards, &files_.others}) {
    for (const ImageFile& one : *list) require_stamp(one.path, one.file.stamp(), kImageFile);
  }
}

}  // namespace hyperslab::io
