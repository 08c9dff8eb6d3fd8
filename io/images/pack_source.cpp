// SPDX-License-Identifier: Apache-2.0
#include "images/pack_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "dataset/glob_files.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "images/packed_set.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostListBytes = 256 << 20;

[[noreturn]] void fail_split(const std::string& path, bool has_splits) {
  throw Error(ExitCode::usage,
              has_splits
                  ? fmt::format("'{}' has images for training and for validation, which are packed "
                                "one after the other; add --split train or --split validation",
                                path)
                  : fmt::format("'{}' is not divided into training and validation; leave out "
                                "--split, or name the folder around it",
                                path));
}

void require_split(const ImagePacking& packing, bool has_splits) {
  if ((packing.split != ImageSplit::unnamed) != has_splits) {
    fail_split(packing.inputs.front(), has_splits);
  }
}

bool is_named(const std::string& path, std::string_view prefix, std::string_view suffix) {
  const std::string name = fs::path(path).filename().string();
  return name.starts_with(prefix) && name.ends_with(suffix);
}

std::vector<std::string> files_in(const std::string& folder, std::string_view prefix,
                                  std::string_view suffix) {
  std::vector<std::string> paths;
  for (const std::string& name : entries_of(folder)) {
    const std::string path = folder + "/" + name;
    if (is_named(path, prefix, suffix) && is_file(path)) paths.push_back(path);
  }
  return paths;
}

/// Folders without a last slash, files and the matches of patterns.
std::vector<std::string> inputs_of(const ImagePacking& packing) {
  std::vector<std::string> paths;
  for (const std::string& input : packing.inputs) {
    for (std::string path : glob_files(input, kImageFile)) {
      while (path.size() > 1 && path.ends_with('/')) path.pop_back();
      if (!is_folder(path) && !is_file(path)) {
        fail_folder(path, "a folder or a file", "no such path", "correct --input");
      }
      paths.push_back(std::move(path));
    }
  }
  require(!paths.empty(), "packing without inputs");
  return paths;
}

void refuse_cifar_python(const std::string& folder) {
  const bool cifar10 = is_file(folder + "/batches.meta") && is_file(folder + "/data_batch_1");
  const bool cifar100 = is_file(folder + "/meta") && is_file(folder + "/train");
  if (!cifar10 && !cifar100) return;
  fail_folder(
      folder, "CIFAR's binary version", "its Python version (pickles)",
      fmt::format("convert it: python3 jobs/data/cifar_python.py {} DIR, and pack DIR", folder));
}

/// The folder of the asked split in a folder with train/ and val/ (or validation/).
std::string split_folder(const std::string& folder, ImageSplit split) {
  if (split == ImageSplit::train) return folder + "/train";
  for (const char* name : {"val", "validation", "valid", "test"}) {
    if (is_folder(folder + "/" + name)) return folder + "/" + name;
  }
  fail_folder(folder, "a folder val or validation", "none", "name the folder itself");
}

bool has_train_folder(const std::string& folder) {
  const std::vector<std::string> names = entries_of(folder);
  return is_folder(folder + "/train") && std::ranges::all_of(names, [&](const std::string& name) {
           return !is_folder(folder + "/" + name) || name == "train" || name == "test" ||
                  name.starts_with("val");
         });
}

std::unique_ptr<PackSource> open_split_folder(const std::string& folder, ImageSplit split,
                                              std::vector<std::string> classes) {
  if (classes.empty()) {  // training's classes, also where validation lacks one
    classes = entries_of(folder + "/train");
    std::erase_if(classes, [&](const auto& name) { return !is_folder(folder + "/train/" + name); });
  }
  return open_class_folders({split_folder(folder, split)}, classes);
}

std::vector<std::string> named_classes(const std::string& path) {
  if (path.empty()) return {};
  std::vector<std::string> names =
      is_packed_set(path) ? open_packed_set(path).classes : lines_of(path);
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  if (names.empty() || std::ranges::adjacent_find(sorted) != sorted.end()) {
    fail_folder(path, "names of classes, each once", names.empty() ? "none" : "one twice",
                "correct --classes");
  }
  return names;
}

/// A folder whose files show its kind; null if they do not.
std::unique_ptr<PackSource> open_known_folder(const std::string& folder,
                                              const ImagePacking& packing,
                                              const std::vector<std::string>& classes) {
  const std::string inner = folder + "/tiny-imagenet-200";
  const std::string& root = is_file(inner + "/wnids.txt") ? inner : folder;
  if (is_file(root + "/wnids.txt")) {
    require_split(packing, true);
    if (!classes.empty()) {
      fail_folder(root, "its own classes, of wnids.txt", "--classes", "leave it out");
    }
    return open_tiny_imagenet(root, packing.split);
  }
  std::vector<std::string> training = files_in(folder, "data_batch_", ".bin");
  if (training.empty()) training = files_in(folder, "train", ".bin");
  const std::vector<std::string> validation = files_in(folder, "test", ".bin");
  if (!training.empty() || !validation.empty()) {
    if (!training.empty() && !validation.empty()) require_split(packing, true);
    const bool first = packing.split == ImageSplit::unnamed ? !training.empty()
                                                            : packing.split == ImageSplit::train;
    const std::vector<std::string>& files = first ? training : validation;
    if (files.empty()) fail_split(folder, false);
    return open_cifar(files, classes);
  }
  refuse_cifar_python(folder);
  const std::vector<std::string> tars = files_in(folder, "", ".tar");
  if (!tars.empty()) {
    require_split(packing, false);
    return open_tar_source(tars, classes);
  }
  if (!has_train_folder(folder)) return nullptr;
  require_split(packing, true);
  return open_split_folder(folder, packing.split, classes);
}

}  // namespace

void fail_folder(const std::string& path, const std::string& expected, const std::string& found,
                 const std::string& remedy) {
  throw Error(ExitCode::data, fmt::format("images of '{}': expected {}, found {}; {}", path,
                                          expected, found, remedy));
}

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (!name.starts_with('.')) names.push_back(std::move(name));
    }
  } catch (const fs::filesystem_error& error) {
    fail_folder(folder, "a readable folder", error.code().message(),
                "correct --input or its permissions");
  }
  std::ranges::sort(names);
  return names;
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::vector<std::string> lines_of(const std::string& path) {
  const std::string text = storage::read_text(path, kMostListBytes);
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

std::unique_ptr<PackSource> open_pack_source(const ImagePacking& packing) {
  const std::vector<std::string> inputs = inputs_of(packing);
  const std::vector<std::string> classes = named_classes(packing.classes);
  const auto folders = std::ranges::count_if(inputs, is_folder);
  if (folders == 1 && inputs.size() == 1) {
    if (auto source = open_known_folder(inputs.front(), packing, classes)) return source;
  }
  require_split(packing, false);
  if (folders == std::ssize(inputs)) return open_class_folders(inputs, classes);
  const auto all_end_in = [&](const char* suffix) {
    return std::ranges::all_of(inputs, [&](const auto& path) { return path.ends_with(suffix); });
  };
  if (folders == 0 && all_end_in(".bin")) return open_cifar(inputs, classes);
  if (folders == 0 && all_end_in(".tar")) return open_tar_source(inputs, classes);
  fail_folder(inputs.front(), "folders alone, .tar files alone, or .bin files of CIFAR alone",
              fmt::format("others among {} inputs", inputs.size()), "correct --input");
}

}  // namespace hyperslab::io
