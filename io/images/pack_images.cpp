// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/pack_images.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/images.hpp"
#include "images/pack_source.hpp"
#include "images/packed_set.hpp"
#include "images/set_writer.hpp"
#include "images/tar_samples.hpp"
#include "run_jobs.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kJobImages = 32;      // that one thread reads with one decoder
constexpr std::int64_t kBatchImages = 2048;  // that are in memory at once, if they are small
constexpr std::int64_t kBatchBytes = 256 << 20;
constexpr std::size_t kNamedImages = 3;  // broken ones in an error

/// An image that was read, and its fault, if it has one.
struct ReadImage {
  std::string bytes;
  ImageHeader header;
  std::string problem;  ///< empty: nothing
};

class Verifier {
 public:
  explicit Verifier(bool decodes) : decodes_(decodes) {}

  void verify(ReadImage& image) {
    const auto bytes = std::as_bytes(std::span(image.bytes));
    try {
      image.header = read_image_header(bytes);
      if (!decodes_) return;
      const image::ImageSize size = image.header.size();
      pixels_.resize(static_cast<std::size_t>(std::int64_t{size.width} * size.height * 3));
      decoder_.decode(bytes, image.header, size, pixels_);
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      image.problem = error.what();
    }
  }

 private:
  bool decodes_;
  ImageDecoder decoder_;
  std::vector<std::uint8_t> pixels_;
};

/// Images [first, first + images) of the source, by all threads.
std::vector<ReadImage> read_batch(const PackSource& source, const ImagePacking& packing,
                                  std::int64_t first, std::int64_t images) {
  std::vector<ReadImage> batch(static_cast<std::size_t>(images));
  const auto jobs = static_cast<std::size_t>((images + kJobImages - 1) / kJobImages);
  run_jobs(jobs, packing.threads, [&](std::size_t job) {
    Verifier verifier(packing.verify);
    const std::int64_t begin = static_cast<std::int64_t>(job) * kJobImages;
    for (std::int64_t i = begin; i < std::min(begin + kJobImages, images); ++i) {
      ReadImage& image = batch[static_cast<std::size_t>(i)];
      image.bytes = source.read(first + i);
      verifier.verify(image);
    }
  });
  return batch;
}

const char* suffix_of(ImageFormat format) {
  switch (format) {
    case ImageFormat::jpeg: return ".jpg";
    case ImageFormat::png: return ".png";
    case ImageFormat::ppm: return ".ppm";
  }
  return "";
}

class Packer {
 public:
  Packer(const ImagePacking& packing, const PackSource& source)
      : packing_(packing), source_(source), writer_(packing.output, packing.shard_bytes) {
    packed_.layout = source.layout();
    packed_.classes = source.classes();
    packed_.class_images.resize(packed_.classes.size());
    packed_.other_files = source.other_files();
  }

  PackedImages pack() {
    std::int64_t images = kJobImages * std::max(packing_.threads, 1);
    for (std::int64_t first = 0; first < source_.size();) {
      images = std::min(images, source_.size() - first);
      std::int64_t bytes = 0;
      for (const ReadImage& image : read_batch(source_, packing_, first, images)) {
        bytes += static_cast<std::int64_t>(image.bytes.size());
        take(first++, image);
      }
      images = std::clamp(kBatchBytes / (bytes / images + 1), kJobImages, kBatchImages);
    }
    require_images();
    finish();
    return std::move(packed_);
  }

 private:
  void take(std::int64_t index, const ReadImage& image) {
    if (!image.problem.empty()) {
      packed_.broken.push_back({source_.name(index), image.problem});
      return;
    }
    if (!packed_.broken.empty() && !packing_.skip_broken) return;  // it will be refused
    const std::int64_t label = source_.label(index);
    const auto place = static_cast<std::size_t>(label);
    const auto folder = packed_.classes.empty() ? fmt::format("{}", label) : packed_.classes[place];
    std::string file = source_.file_name(index);
    if (!has_image_suffix(file)) file += suffix_of(image.header.format);
    writer_.add(folder, file, label, image.bytes);
    if (place >= packed_.class_images.size()) packed_.class_images.resize(place + 1);
    ++packed_.class_images[place];
    packed_.image_bytes += static_cast<std::int64_t>(image.bytes.size());
    include(image.header.size());
    ++packed_.images;
  }

  void include(image::ImageSize size) {
    if (packed_.images == 0) packed_.least = packed_.most = size;
    packed_.least = {std::min(packed_.least.width, size.width),
                     std::min(packed_.least.height, size.height)};
    packed_.most = {std::max(packed_.most.width, size.width),
                    std::max(packed_.most.height, size.height)};
  }

  void require_images() const {
    const auto& broken = packed_.broken;
    if (!broken.empty() && !packing_.skip_broken) {
      std::vector<std::string> named;
      for (std::size_t i = 0; i < std::min(kNamedImages, broken.size()); ++i) {
        named.push_back(broken[i].name + " (" + broken[i].problem + ")");
      }
      const std::string more = broken.size() > named.size() ? ", ..." : "";
      throw Error(ExitCode::data,
                  fmt::format("{} of {} images are broken: {}{}; replace them, or leave them out "
                              "with --broken skip",
                              broken.size(), source_.size(), fmt::join(named, ", "), more));
    }
    if (packed_.images > 0) return;
    fail_folder(packing_.inputs.front(), "images (.jpg, .jpeg, .png or .ppm)",
                broken.empty() ? "none" : fmt::format("{} broken ones alone", broken.size()),
                "correct --input");
  }

  void finish() {
    nlohmann::ordered_json set = {{"format", kSetFormat},
                                  {"version", kSetVersion},
                                  {"layout", packed_.layout},
                                  {"images", packed_.images},
                                  {"image_bytes", packed_.image_bytes},
                                  {"least_size", {packed_.least.width, packed_.least.height}},
                                  {"most_size", {packed_.most.width, packed_.most.height}},
                                  {"classes", packed_.classes},
                                  {"shards", nlohmann::ordered_json::array()},
                                  {"broken", nlohmann::ordered_json::array()}};
    for (const SetWriter::Shard& shard : writer_.end_shards()) {
      set["shards"].push_back(
          {{"file", shard.file}, {"bytes", shard.bytes}, {"images", shard.images}});
    }
    for (const BrokenImage& image : packed_.broken) {
      set["broken"].push_back({{"name", image.name}, {"problem", image.problem}});
    }
    packed_.shards = static_cast<std::int64_t>(set["shards"].size());
    using Json = nlohmann::ordered_json;  // names of files may be no UTF-8
    writer_.finish(set.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  const ImagePacking& packing_;
  const PackSource& source_;
  SetWriter writer_;
  PackedImages packed_;
};

}  // namespace

PackedImages pack_images(const ImagePacking& packing) {
  require(packing.shard_bytes > 0, "shards need a size");
  const std::unique_ptr<PackSource> source = open_pack_source(packing);
  return Packer(packing, *source).pack();
}

}  // namespace hyperslab::io
