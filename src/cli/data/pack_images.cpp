// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/pack_images.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>

#include "../command.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/core/printable.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::size_t kShownBroken = 10;

/// The value of an option that is one of two words.
bool is_second(const Arguments& args, const char* option, std::string_view first,
               std::string_view second) {
  const auto value = args.get<std::string>(option);
  if (value == first || value == second) return value == second;
  throw Error(ExitCode::usage, fmt::format("--{} is '{}'; it must be {} or {}", option,
                                           printable(value), first, second));
}

std::int64_t at_least_one(const Arguments& args, const char* option) {
  const auto value = args.get<std::int64_t>(option);
  if (value >= 1 && value <= 1 << 20) return value;
  throw Error(ExitCode::usage,
              fmt::format("--{} is {}; it must be a number from 1 to {}", option, value, 1 << 20));
}

io::ImagePacking packing_of(const Arguments& args) {
  io::ImagePacking packing;
  packing.inputs = args.list("input");
  packing.output = args.get<std::string>("output");
  if (args.has("split")) {
    packing.split = is_second(args, "split", "train", "validation") ? io::ImageSplit::validation
                                                                    : io::ImageSplit::train;
  }
  if (args.has("classes")) packing.classes = args.get<std::string>("classes");
  packing.shard_bytes = at_least_one(args, "shard-mib") << 20;
  packing.skip_broken = is_second(args, "broken", "refuse", "skip");
  packing.verify = is_second(args, "verify", "headers", "decode");
  packing.threads = omp_get_max_threads();
  if (args.has("threads")) packing.threads = static_cast<int>(at_least_one(args, "threads"));
  return packing;
}

void print_broken(const std::vector<io::BrokenImage>& broken) {
  for (std::size_t i = 0; i < std::min(broken.size(), kShownBroken); ++i) {
    fmt::print("  left out: {}: {}\n", printable(broken[i].name), printable(broken[i].problem));
  }
  if (broken.size() > kShownBroken) {
    fmt::print("  and {} more; set.json lists all\n", broken.size() - kShownBroken);
  }
}

void print(const std::string& output, const io::PackedImages& packed, double seconds) {
  const auto classes = packed.class_images.size();
  fmt::print("{}: {} images of {} classes from {}, {:.1f} MiB in {} shards, in {:.2f} s\n", output,
             packed.images, classes, packed.layout,
             static_cast<double>(packed.image_bytes) / (1 << 20), packed.shards, seconds);
  fmt::print("  width {} to {}, height {} to {} pixels; {} to {} images a class\n",
             packed.least.width, packed.most.width, packed.least.height, packed.most.height,
             *std::ranges::min_element(packed.class_images),
             *std::ranges::max_element(packed.class_images));
  if (packed.other_files > 0) {
    fmt::print("  {} files are no images by their names and were passed over\n",
               packed.other_files);
  }
  if (!packed.broken.empty()) fmt::print("  {} broken images\n", packed.broken.size());
  print_broken(packed.broken);
  const auto empty = std::ranges::count(packed.class_images, 0);
  if (empty == 0) return;
  log::warn(fmt::format("{} of {} classes have no image; is the input whole?", empty, classes));
}

}  // namespace

Arguments pack_images_arguments() {
  Arguments args(
      "hyperslab pack-images --input FOLDER... --output DIR\n"
      "                      [--split train|validation]",
      "Packs images and their classes into tar files with an index. Images stay encoded "
      "as they are.");
  args.add()("input", po::value<std::vector<std::string>>()->multitoken()->required(),
             "a folder with a folder a class, or with train and val of such; TinyImageNet as it is "
             "unpacked; CIFAR's binary files; tar files (WebDataset)")(
      "output", po::value<std::string>()->required(),
      "new folder for tar shards, index.npy and set.json; data.train of a deck names it")(
      "split", po::value<std::string>(), "train or validation, of an input that has both")(
      "classes", po::value<std::string>(),
      "names of the classes in the order of their labels: a text file, one a line, or the packed "
      "folder of the training images (default: class folders sorted by name)")(
      "shard-mib", po::value<std::int64_t>()->default_value(256), "size of a shard at most, MiB")(
      "broken", po::value<std::string>()->default_value("refuse"),
      "what to do about broken images: refuse, or skip them and list them in set.json")(
      "verify", po::value<std::string>()->default_value("decode"),
      "how images are checked: decode, each once, or headers, which finds less")(
      "threads", po::value<std::int64_t>(), "that read and decode (default: all cores)");
  return args;
}

ExitCode run_pack_images(comm::World& world, const std::vector<std::string>& arguments) {
  Arguments args = pack_images_arguments();
  if (!args.parse(world, arguments)) return ExitCode::ok;
  if (world.size() > 1) {
    throw Error(ExitCode::usage, "pack-images runs on one rank; start it without mpirun")
        .on_all_ranks();
  }
  const io::ImagePacking packing = packing_of(args);
  const double start = now_seconds();
  const io::PackedImages packed = io::pack_images(packing);
  print(packing.output, packed, now_seconds() - start);
  return ExitCode::ok;
}

}  // namespace hyperslab::cli
