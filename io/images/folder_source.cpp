// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "files/storage.hpp"
#include "images/pack_source.hpp"
#include "images/tar_samples.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostFileBytes = 1ULL << 30;
const char* const kClassFolders = "class folders";
const char* const kTinyImageNet = "TinyImageNet";

/// Files of a folder and their labels.
class FolderSource final : public PackSource {
 public:
  FolderSource(const char* layout, std::vector<std::string> classes)
      : PackSource(std::move(classes)), layout_(layout) {
    for (const std::string& name : this->classes()) {
      const auto label = static_cast<std::int64_t>(labels_.size());
      if (!labels_.emplace(name, label).second) {
        fail_folder(name, "a class once in the list of classes", "it twice", "correct the list");
      }
    }
  }

  void add(std::string path, std::int64_t label) {
    if (has_image_suffix(path)) {
      images_.push_back({std::move(path), label});
    } else {
      ++other_files_;
    }
  }
  /// All files below `folder`, sorted; symbolic links to folders are not followed.
  void add_below(const std::string& folder, std::int64_t label) {
    std::vector<std::string> paths;
    try {
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.is_regular_file()) paths.push_back(entry.path().string());
      }
    } catch (const fs::filesystem_error& error) {
      fail_folder(folder, "a readable folder", error.code().message(), "check its permissions");
    }
    std::ranges::sort(paths);
    for (std::string& path : paths) add(std::move(path), label);
  }
  void add_other_file() { ++other_files_; }
  /// -1 if there is no such class.
  [[nodiscard]] std::int64_t label_of(const std::string& name) const {
    const auto found = labels_.find(name);
    return found == labels_.end() ? -1 : found->second;
  }

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(images_.size());
  }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return image(index).label; }
  [[nodiscard]] std::string name(std::int64_t index) const override { return image(index).path; }
  [[nodiscard]] std::string file_name(std::int64_t index) const override {
    return fs::path(image(index).path).filename().string();
  }
  [[nodiscard]] std::string read(std::int64_t index) const override {
    return storage::read_text(image(index).path, kMostFileBytes);
  }
  [[nodiscard]] const char* layout() const override { return layout_; }
  [[nodiscard]] std::int64_t other_files() const override { return other_files_; }

 private:
  struct Image {
    std::string path;
    std::int64_t label;
  };
  [[nodiscard]] const Image& image(std::int64_t index) const {
    return images_[static_cast<std::size_t>(index)];
  }

  const char* layout_;
  std::map<std::string, std::int64_t> labels_;
  std::vector<Image> images_;
  std::int64_t other_files_ = 0;
};

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names = entries_of(folder);
  std::erase_if(names, [&](const std::string& name) { return !is_folder(folder + "/" + name); });
  return names;
}

void add_validation(FolderSource& source, const std::string& root) {
  const std::string list = root + "/val/val_annotations.txt";
  for (const std::string& line : lines_of(list)) {  // FILE<tab>CLASS<tab>box
    const std::size_t tab = line.find('\t');
    const std::size_t end = std::min(line.find('\t', tab + 1), line.size());
    const std::string file = line.substr(0, tab);
    const std::string name = tab == line.npos ? "" : line.substr(tab + 1, end - tab - 1);
    const std::int64_t label = source.label_of(name);
    if (label < 0 || file.find('/') != file.npos) {
      fail_folder(list, "lines of a file and one of the classes in wnids.txt",
                  fmt::format("'{}'", line.substr(0, 80)), "unpack the data set again");
    }
    source.add(root + "/val/images/" + file, label);
  }
}

}  // namespace

std::unique_ptr<PackSource> open_class_folders(const std::vector<std::string>& folders,
                                               const std::vector<std::string>& classes) {
  std::vector<std::string> names = classes;
  if (names.empty()) {
    for (const std::string& folder : folders) {
      for (std::string& name : folders_in(folder)) names.push_back(std::move(name));
    }
    std::ranges::sort(names);
    names.erase(std::ranges::unique(names).begin(), names.end());
  }
  auto source = std::make_unique<FolderSource>(kClassFolders, std::move(names));
  for (const std::string& folder : folders) {
    for (const std::string& name : entries_of(folder)) {
      const std::string path = folder + "/" + name;
      if (!is_folder(path)) {
        if (has_image_suffix(name)) {
          fail_folder(folder, "images in class folders", fmt::format("'{}' beside them", name),
                      "move it into the folder of its class, or away");
        }
        source->add_other_file();
        continue;
      }
      const std::int64_t label = source->label_of(name);
      if (label < 0) {
        fail_folder(folder, fmt::format("the {} classes that are named", classes.size()),
                    fmt::format("a folder '{}'", name), "add it to the list, or move it away");
      }
      source->add_below(path, label);
    }
  }
  return source;
}

std::unique_ptr<PackSource> open_tiny_imagenet(const std::string& folder, ImageSplit split) {
  auto source = std::make_unique<FolderSource>(kTinyImageNet, lines_of(folder + "/wnids.txt"));
  if (split == ImageSplit::validation) {
    add_validation(*source, folder);
    return source;
  }
  for (const std::string& name : folders_in(folder + "/train")) {
    const std::int64_t label = source->label_of(name);
    if (label < 0) {
      fail_folder(folder + "/train", "the classes in wnids.txt", fmt::format("'{}'", name),
                  "unpack the data set again");
    }
    source->add_below(folder + "/train/" + name + "/images", label);
  }
  return source;
}

}  // namespace hyperslab::io
