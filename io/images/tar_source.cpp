// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "images/image_bytes.hpp"
#include "images/pack_source.hpp"
#include "images/tar_samples.hpp"

namespace hyperslab::io {
namespace {

/// Labels of class folders become the labels of the classes that are named.
void relabel(ImageFiles& files, const std::vector<std::string>& classes) {
  std::vector<std::int64_t> labels;
  for (const std::string& folder : files.classes) {
    const auto found = std::ranges::find(classes, folder);
    if (found == classes.end()) {
      fail_file(files.shards.front().path,
                fmt::format("the {} classes that are named", classes.size()),
                fmt::format("a folder '{}'", folder), "add it to the list", kImageFile);
    }
    labels.push_back(found - classes.begin());
  }
  for (ImageRow& row : files.own_rows) row.label = labels[static_cast<std::size_t>(row.label)];
  files.classes = classes;
}

class TarSource final : public PackSource {
 public:
  TarSource(ImageFiles files, std::int64_t classes)
      : PackSource(files.classes),
        other_files_(files.other_files),
        images_(std::move(files), classes) {}

  [[nodiscard]] std::int64_t size() const override { return images_.size(); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override {
    return images_.label(index);
  }
  [[nodiscard]] std::string name(std::int64_t index) const override { return images_.name(index); }
  [[nodiscard]] std::string file_name(std::int64_t index) const override {
    const std::string name = images_.name(index);
    return name.substr(std::max(name.rfind('/') + 1, name.rfind(": ") + 2));
  }
  [[nodiscard]] std::string read(std::int64_t index) const override {
    return std::string(text_of(images_.bytes(index)));
  }
  [[nodiscard]] const char* layout() const override { return "tar files"; }
  [[nodiscard]] std::int64_t other_files() const override { return other_files_; }

 private:
  std::int64_t other_files_;
  TarImages images_;
};

}  // namespace

std::unique_ptr<PackSource> open_tar_source(const std::vector<std::string>& paths,
                                            const std::vector<std::string>& classes) {
  ImageFiles files = index_tars(map_image_files(paths));
  if (!classes.empty() && !files.classes.empty()) relabel(files, classes);
  if (!classes.empty()) files.classes = classes;
  constexpr std::int64_t kMostLabels = 1 << 24;  // that have no names
  const std::int64_t most =
      files.classes.empty() ? kMostLabels : static_cast<std::int64_t>(files.classes.size());
  return std::make_unique<TarSource>(std::move(files), most);
}

}  // namespace hyperslab::io
