// SPDX-License-Identifier: Apache-2.0
#include "images/tar_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>

#include "images/image_bytes.hpp"
#include "images/tar_reader.hpp"

namespace hyperslab::io {
namespace {

/// What follows the last dot of a name, in small letters.
std::string suffix_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  std::string suffix(dot == name.npos ? std::string_view() : name.substr(dot + 1));
  std::ranges::transform(suffix, suffix.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return suffix;
}

std::string_view stem_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

std::string_view file_of(std::string_view name) { return name.substr(name.rfind('/') + 1); }

std::int64_t label_in(const ImageFile& tar, const TarMember& member) {
  std::string_view text = text_of(tar.file.bytes().subspan(static_cast<std::size_t>(member.offset),
                                                           static_cast<std::size_t>(member.bytes)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  std::int64_t label = -1;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc{} || rest != text.data() + text.size() || label < 0) {
    fail_file(tar.path, fmt::format("the number of a class in '{}'", member.name),
              fmt::format("'{}'", text.substr(0, 40)),
              "write labels as numbers from 0, or put images into class folders", kImageFile);
  }
  return label;
}

/// Fills the index from samples of all tars, whose labels are those of .cls.
void label_by_files(ImageFiles& files, const std::vector<std::vector<TarSample>>& samples) {
  for (std::size_t shard = 0; shard < samples.size(); ++shard) {
    for (const TarSample& sample : samples[shard]) {
      if (!sample.label) {
        fail_file(files.shards[shard].path,
                  fmt::format("a label in '{}.cls'", stem_of(sample.name)), "no such member",
                  "add it, or leave the image out", kImageFile);
      }
      files.own_rows.push_back(
          {static_cast<std::int64_t>(shard), sample.offset, sample.bytes, *sample.label});
    }
  }
}

void label_by_folders(ImageFiles& files, const std::vector<std::vector<TarSample>>& samples) {
  std::map<std::string_view, std::int64_t> labels;
  for (const auto& of_tar : samples) {
    for (const TarSample& sample : of_tar) labels[class_folder(sample.name)] = 0;
  }
  for (auto& [folder, label] : labels) {
    label = static_cast<std::int64_t>(files.classes.size());
    files.classes.emplace_back(folder);
  }
  for (std::size_t shard = 0; shard < samples.size(); ++shard) {
    for (const TarSample& sample : samples[shard]) {
      const std::string_view folder = class_folder(sample.name);
      if (folder.empty()) {
        fail_file(files.shards[shard].path,
                  fmt::format("the class of '{}': a member .cls or a folder", sample.name),
                  "neither", "put images into class folders, or add labels", kImageFile);
      }
      files.own_rows.push_back(
          {static_cast<std::int64_t>(shard), sample.offset, sample.bytes, labels.at(folder)});
    }
  }
}

std::vector<std::vector<TarSample>> read_all(const std::vector<ImageFile>& tars) {
  std::vector<std::vector<TarSample>> samples(tars.size());
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < tars.size(); ++i) {
    try {
      samples[i] = read_tar_samples(tars[i]);
    } catch (...) {
#pragma omp critical(hyperslab_index_tars)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return samples;
}

}  // namespace

bool has_image_suffix(std::string_view name) {
  const std::string suffix = suffix_of(name);
  return !file_of(name).starts_with("._") &&
         (suffix == "jpg" || suffix == "jpeg" || suffix == "png" || suffix == "ppm");
}

std::string_view class_folder(std::string_view name) {
  const auto folder_around = [](std::string_view path) {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? std::string_view() : path.substr(0, slash);
  };
  const std::string_view folder = folder_around(name);
  if (file_of(folder) == "images" && folder.size() > 6) return file_of(folder_around(folder));
  return file_of(folder);
}

std::vector<TarSample> read_tar_samples(const ImageFile& tar) {
  std::vector<TarSample> samples;
  std::unordered_map<std::string, std::int64_t> labels;
  TarReader reader(tar.path, tar.file.bytes());
  while (auto member = reader.next()) {
    if (has_image_suffix(member->name)) {
      samples.push_back({std::move(member->name), member->offset, member->bytes, {}});
    } else if (suffix_of(member->name) == "cls") {
      labels[std::string(stem_of(member->name))] = label_in(tar, *member);
    } else if (file_of(member->name) == "val_annotations.txt") {
      fail_file(tar.path, "class folders or labels (.cls)",
                "the validation images of TinyImageNet, whose classes are in a text file",
                "unpack it, and use hyperslab pack-images --split validation", kImageFile);
    }
  }
  for (TarSample& sample : samples) {
    const auto found = labels.find(std::string(stem_of(sample.name)));
    if (found != labels.end()) sample.label = found->second;
  }
  return samples;
}

ImageFiles index_tars(std::vector<ImageFile> tars) {
  ImageFiles files;
  files.format = "tar";
  files.shards = std::move(tars);
  const std::vector<std::vector<TarSample>> samples = read_all(files.shards);
  bool any_label = false;
  for (const auto& of_tar : samples) {
    any_label |=
        std::ranges::any_of(of_tar, [](const TarSample& s) { return s.label.has_value(); });
  }
  any_label ? label_by_files(files, samples) : label_by_folders(files, samples);
  files.rows = files.own_rows;
  return files;
}

}  // namespace hyperslab::io
