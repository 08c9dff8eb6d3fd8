// SPDX-License-Identifier: Apache-2.0
#include "images/tar_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <unordered_map>
#include <utility>

#include "images/image_bytes.hpp"
#include "images/tar_reader.hpp"

namespace hyperslab::io {
namespace {

/// Text after the last dot of a name, in small letters; empty without a dot.
std::string suffix_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  std::string suffix(dot == name.npos ? std::string_view() : name.substr(dot + 1));
  std::ranges::transform(suffix, suffix.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return suffix;
}

std::string_view stem_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

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

[[noreturn]] void fail_twice(const ImageFile& tar, const std::string& name) {
  fail_file(tar.path, "members of different names", fmt::format("'{}' twice", name),
            "write the tar again with each file once; tar -r adds a second one", kImageFile);
}

/// A program that unpacks the tar keeps the last of two files of one name.
void require_different_names(const ImageFile& tar, const TarContent& content) {
  std::vector<std::string_view> names;
  for (const TarSample& sample : content.samples) names.emplace_back(sample.name);
  for (const std::string& other : content.others) {
    if (!other.ends_with('/')) names.emplace_back(other);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) fail_twice(tar, std::string(*twice));
}

/// Fills the index from samples of all tars, whose labels come from .cls.
void label_by_files(ImageFiles& files, const std::vector<TarContent>& contents) {
  for (std::size_t shard = 0; shard < contents.size(); ++shard) {
    for (const std::string& other : contents[shard].others) {
      if (!other.ends_with('/') && suffix_of(other) != "cls") ++files.other_files;
    }
    for (const TarSample& sample : contents[shard].samples) {
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

std::vector<TarContent> read_all(const std::vector<ImageFile>& tars) {
  std::vector<TarContent> contents(tars.size());
  std::exception_ptr error;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::size_t i = 0; i < tars.size(); ++i) {
    try {
      contents[i] = read_tar_content(tars[i]);
    } catch (...) {
#pragma omp critical(hyperslab_index_tars)
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return contents;
}

}  // namespace

bool has_image_suffix(std::string_view name) {
  const std::string suffix = suffix_of(name);
  return !file_of(name).starts_with("._") &&
         (suffix == "jpg" || suffix == "jpeg" || suffix == "png" || suffix == "ppm");
}

TarContent read_tar_content(const ImageFile& tar) {
  TarContent content;
  std::unordered_map<std::string, std::int64_t> labels;
  TarReader reader(tar.path, tar.file.bytes());
  while (auto member = reader.next()) {
    if (has_image_suffix(member->name)) {
      content.samples.push_back({std::move(member->name), member->offset, member->bytes, {}});
      continue;
    }
    if (suffix_of(member->name) == "cls") {
      const bool is_first = labels.emplace(stem_of(member->name), label_in(tar, *member)).second;
      if (!is_first) fail_twice(tar, member->name);
    }
    if (file_of(member->name) == "val_annotations.txt") {
      fail_file(tar.path, "class folders or labels (.cls)",
                "the validation images of TinyImageNet, whose classes are in a text file",
                "unpack it, and use hyperslab pack-images --split validation", kImageFile);
    }
    content.others.push_back(std::move(member->name));
  }
  require_different_names(tar, content);
  for (TarSample& sample : content.samples) {
    const auto found = labels.find(std::string(stem_of(sample.name)));
    if (found != labels.end()) sample.label = found->second;
  }
  return content;
}

ImageFiles index_tars(std::vector<ImageFile> tars) {
  ImageFiles files;
  files.format = "tar";
  files.shards = std::move(tars);
  const std::vector<TarContent> contents = read_all(files.shards);
  const bool any_label = std::ranges::any_of(contents, [](const TarContent& content) {
    return std::ranges::any_of(content.samples, [](const TarSample& s) { return !!s.label; });
  });
  any_label ? label_by_files(files, contents) : label_by_folders(files, contents);
  files.rows = files.own_rows;
  return files;
}

}  // namespace hyperslab::io
