// SPDX-License-Identifier: Apache-2.0
// CIFAR's binary version (Krizhevsky 2009): records of one label byte (CIFAR-100: a coarse and a
// fine one) and 3072 bytes, the red, green and blue planes of 32 x 32 pixels.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "hyperslab/core/error.hpp"
#include "images/image_bytes.hpp"
#include "images/pack_source.hpp"
#include "images/ppm.hpp"
#include "images/tar_images.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 32;
constexpr std::int64_t kPlane = kSide * kSide;
constexpr std::array<const char*, 10> kNames = {"airplane", "automobile", "bird",  "cat",  "deer",
                                                "dog",      "frog",       "horse", "ship", "truck"};

/// CIFAR-100's two files are called train.bin and test.bin.
bool is_cifar100(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  return name == "train.bin" || name == "test.bin";
}

std::vector<std::string> names_of(const std::string& path) {
  if (!is_cifar100(path)) return {kNames.begin(), kNames.end()};
  const std::string list = (fs::path(path).parent_path() / "fine_label_names.txt").string();
  if (is_file(list)) return lines_of(list);
  std::vector<std::string> numbers(100);
  for (std::size_t label = 0; label < 100; ++label) numbers[label] = fmt::format("{:02}", label);
  return numbers;
}

class CifarSource final : public PackSource {
 public:
  CifarSource(const std::vector<std::string>& files, std::vector<std::string> classes)
      : PackSource(std::move(classes)), labels_(is_cifar100(files.front()) ? 2 : 1) {
    for (const std::string& path : files) add(path);
  }

  [[nodiscard]] std::int64_t size() const override { return ends_.back(); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override {
    return byte_at(record(index), static_cast<std::size_t>(labels_ - 1));
  }
  [[nodiscard]] std::string name(std::int64_t index) const override {
    const auto [file, number] = place(index);
    return fmt::format("{}: image {}", files_[file].path, number);
  }
  [[nodiscard]] std::string file_name(std::int64_t index) const override {
    const auto [file, number] = place(index);
    return fmt::format("{}_{:05}.ppm", fs::path(files_[file].path).stem().string(), number);
  }
  [[nodiscard]] std::string read(std::int64_t index) const override {
    const std::string_view planes =
        text_of(record(index)).substr(static_cast<std::size_t>(labels_));
    std::string ppm = ppm_header({kSide, kSide});
    for (std::size_t i = 0; i < kPlane; ++i) {
      for (std::size_t c = 0; c < 3; ++c) ppm += planes[c * kPlane + i];
    }
    return ppm;
  }
  [[nodiscard]] const char* layout() const override {
    return labels_ == 2 ? "CIFAR-100" : "CIFAR-10";
  }

 private:
  [[nodiscard]] std::int64_t record_bytes() const { return labels_ + 3 * kPlane; }

  void add(const std::string& path) {
    if (is_cifar100(path) != (labels_ == 2)) {
      fail_folder(path, "files of one data set", "CIFAR-10 and CIFAR-100", "pack them apart");
    }
    files_.push_back({path, MappedFile(path, kImageFile)});
    const std::int64_t bytes = files_.back().file.size();
    if (bytes % record_bytes() != 0) {
      fail_file(path, fmt::format("records of {} bytes ({})", record_bytes(), layout()),
                fmt::format("{} bytes", bytes), "download the data set again", kImageFile);
    }
    const std::int64_t begin = ends_.empty() ? 0 : ends_.back();
    ends_.push_back(begin + bytes / record_bytes());
    for (std::int64_t i = begin; i < ends_.back(); ++i) {
      if (label(i) < std::ssize(classes())) continue;
      fail_file(path, fmt::format("labels below {}", classes().size()),
                fmt::format("label {} of image {}", label(i), i - begin),
                "download the data set again", kImageFile);
    }
  }
  struct Place {
    std::size_t file;
    std::int64_t number;
  };
  [[nodiscard]] Place place(std::int64_t index) const {
    const auto file =
        static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    return {file, index - (file == 0 ? 0 : ends_[file - 1])};
  }
  [[nodiscard]] std::span<const std::byte> record(std::int64_t index) const {
    const auto [file, number] = place(index);
    return files_[file].file.bytes().subspan(static_cast<std::size_t>(number * record_bytes()),
                                             static_cast<std::size_t>(record_bytes()));
  }

  std::int64_t labels_;  ///< bytes of labels in a record
  std::vector<ImageFile> files_;
  std::vector<std::int64_t> ends_;  ///< images up to the end of each file
};

}  // namespace

std::unique_ptr<PackSource> open_cifar(const std::vector<std::string>& files,
                                       const std::vector<std::string>& classes) {
  require(!files.empty(), "CIFAR without files");
  return std::make_unique<CifarSource>(files, classes.empty() ? names_of(files.front()) : classes);
}

}  // namespace hyperslab::io
