// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "hyperslab/bench/bench_data.hpp"
#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/npy_file.hpp"
#include "hyperslab/train/deck_data.hpp"

namespace hyperslab::bench {
namespace {

/// Turns normalized patches back into pixels.
class Pixels {
 public:
  Pixels(const model::ImageSpec& spec, const image::AugmentConfig& augment)
      : spec_(spec), augment_(augment), rgb_(static_cast<std::size_t>(spec.size * spec.size * 3)) {}

  /// patches: (N, P) f32 of one image -> (rows, columns, 3).
  std::span<const std::uint8_t> of(std::span<const float> patches) {
    for (Dim row = 0; row < spec_.size; ++row) {
      for (Dim column = 0; column < spec_.size; ++column) {
        for (Dim channel = 0; channel < 3; ++channel) {
          const float value = patches[offset(row, column, std::min(channel, spec_.channels - 1))];
          rgb_[static_cast<std::size_t>((row * spec_.size + column) * 3 + channel)] =
              level(value, static_cast<std::size_t>(channel));
        }
      }
    }
    return rgb_;
  }

 private:
  [[nodiscard]] std::size_t offset(Dim row, Dim column, Dim channel) const {
    const Dim p = spec_.patch;
    const Dim patch = row / p * spec_.grid() + column / p;
    const Dim value = (channel * p + row % p) * p + column % p;
    return static_cast<std::size_t>(patch * spec_.patch_values() + value);
  }
  [[nodiscard]] std::uint8_t level(float value, std::size_t channel) const {
    const std::size_t of_channels = spec_.channels == 1 ? 0 : channel;
    const double shade = value * augment_.deviation.at(of_channels) + augment_.mean.at(of_channels);
    return static_cast<std::uint8_t>(std::lround(255 * std::clamp(shade, 0.0, 1.0)));
  }

  const model::ImageSpec& spec_;
  const image::AugmentConfig& augment_;
  std::vector<std::uint8_t> rgb_;
};

}  // namespace

void write_samples(const train::Config& config, const std::string& path) {
  if (!config.model.is_of_images()) {
    throw Error(ExitCode::usage, "--samples is for images: this deck trains on text");
  }
  const model::ImageSpec& spec = config.model.image;
  const train::DeckData data = train::open_data(config);
  const Dim B = config.train.microbatch;
  const std::int64_t count = config.train.global_batch;
  Tensor patches(Device::cpu, DType::f32, {B, spec.patches(), spec.patch_values()});
  Batch batch;
  batch.patches = patches.view();
  io::NpyFile file(path, io::NpyFile::Images{count, spec.size, spec.size, 3});
  Pixels pixels(spec, config.augment);
  for (std::int64_t first = 0; first < count; first += B) {
    data.train_samples->read(first, io::kNoEnd, batch);
    for (Dim b = 0; b < std::min(B, count - first); ++b) {
      file.append(pixels.of(patches.view().slice(b, 1).span<float>()));
    }
  }
  file.finish();
}

}  // namespace hyperslab::bench
