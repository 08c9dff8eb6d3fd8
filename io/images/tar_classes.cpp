// SPDX-License-Identifier: Apache-2.0
// Class folders of tar files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "images/image_bytes.hpp"
#include "images/tar_samples.hpp"

namespace hyperslab::io {
namespace {

std::string_view folder_around(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

bool is_hidden(std::string_view path) {
  return path.starts_with('.') || path.find("/.") != path.npos;
}

/// The folder that holds the file, or the one around it if that is called "images"; empty if there
/// is none.
std::string_view class_folder(std::string_view name) {
  const std::string_view folder = folder_around(name);
  const bool is_inner = file_of(folder) == "images" && folder.size() > 6;
  return is_inner ? folder_around(folder) : folder;
}

/// The class folder with the fewest folders around it.
class Highest {
 public:
  void add(std::string_view name) {
    const std::string_view folder = class_folder(name);
    if (folder.empty() || is_hidden(folder)) return;
    const auto depth = std::ranges::count(folder, '/');
    if (!folder_.empty() && depth >= depth_) return;
    folder_ = folder;
    depth_ = depth;
  }
  [[nodiscard]] std::string_view folder() const { return folder_; }

 private:
  std::string_view folder_;
  std::ptrdiff_t depth_ = 0;
};

/// The class folder of a tar that lies highest, of its images if it has any; empty if there is
/// none. Its classes are the folders beside this one.
std::string_view highest_class(const TarContent& content) {
  Highest highest;
  for (const TarSample& sample : content.samples) highest.add(sample.name);
  if (!content.samples.empty()) return highest.folder();
  for (const std::string& other : content.others) {
    if (!other.ends_with('/')) highest.add(other);
  }
  return highest.folder();
}

/// The part of a path behind a folder; nothing if it lies elsewhere.
std::optional<std::string_view> below(std::string_view root, std::string_view path) {
  if (root.empty()) return path;
  if (!path.starts_with(root) || path.size() <= root.size() || path[root.size()] != '/') return {};
  return path.substr(root.size() + 1);
}

/// The classes of one tar's members.
class TarClasses {
 public:
  TarClasses(const std::string& path, const TarContent& content)
      : path_(path), highest_(highest_class(content)), root_(folder_around(highest_)) {}

  /// Nothing: an image in a hidden folder, which is passed over. Throws Error(data).
  [[nodiscard]] std::optional<std::string_view> of_image(const TarSample& sample) const {
    const auto inside = below(root_, sample.name);
    const bool is_class = inside && inside->find('/') != inside->npos;
    const bool is_below_hidden = is_class ? inside->starts_with('.') : is_hidden(sample.name);
    if (is_below_hidden) return {};
    if (folder_around(sample.name).empty()) fail_without(sample.name);
    if (!is_class) fail_apart(class_folder(sample.name));
    return inside->substr(0, inside->find('/'));
  }
  /// Nothing: a file that lies in no class folder.
  [[nodiscard]] std::optional<std::string_view> of_other(std::string_view name) const {
    if (highest_.empty()) return {};
    const auto inside = below(root_, name);
    if (!inside || inside->starts_with('.')) return {};
    const std::size_t slash = inside->find('/');
    if (slash == inside->npos) return {};
    return inside->substr(0, slash);
  }
  /// True if a folder with this content would count the file.
  [[nodiscard]] bool counts(std::string_view name) const {
    return !name.ends_with('/') && !below(root_, name).value_or(file_of(name)).starts_with('.');
  }

 private:
  [[noreturn]] void fail_without(const std::string& name) const {
    fail_file(path_, fmt::format("the class of '{}': a member .cls or a folder", name), "neither",
              "put images into class folders, or add labels", kImageFile);
  }
  [[noreturn]] void fail_apart(std::string_view folder) const {
    fail_file(path_, "class folders beside each other",
              fmt::format("'{}' and '{}'", highest_, folder.empty() ? "." : folder),
              "unpack it and pack the folder around the classes, or write a tar of that folder",
              kImageFile);
  }

  const std::string& path_;
  std::string_view highest_;
  std::string_view root_;
};

}  // namespace

void label_by_folders(ImageFiles& files, const std::vector<TarContent>& contents) {
  std::vector<TarClasses> classes;
  std::map<std::string_view, std::int64_t> labels;
  for (std::size_t shard = 0; shard < contents.size(); ++shard) {
    classes.emplace_back(files.shards[shard].path, contents[shard]);
    for (const TarSample& sample : contents[shard].samples) {
      if (const auto name = classes.back().of_image(sample)) labels[*name] = 0;
    }
    for (const std::string& other : contents[shard].others) {
      if (const auto name = classes.back().of_other(other)) labels[*name] = 0;
      if (classes.back().counts(other)) ++files.other_files;
    }
  }
  for (auto& [folder, label] : labels) {
    label = static_cast<std::int64_t>(files.classes.size());
    files.classes.emplace_back(folder);
  }
  for (std::size_t shard = 0; shard < contents.size(); ++shard) {
    for (const TarSample& sample : contents[shard].samples) {
      const auto name = classes[shard].of_image(sample);
      if (!name) continue;
      files.own_rows.push_back(
          {static_cast<std::int64_t>(shard), sample.offset, sample.bytes, labels.at(*name)});
    }
  }
}

}  // namespace hyperslab::io
