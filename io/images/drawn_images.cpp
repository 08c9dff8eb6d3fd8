// SPDX-License-Identifier: Apache-2.0
#include "images/drawn_images.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"
#include "images/ppm.hpp"

namespace hyperslab::io {
namespace {

constexpr std::int64_t kMostImages = 512;
constexpr std::int64_t kMostBytes = 96LL << 20;

constexpr std::array<const char*, 6> kShapes = {"disc", "square", "triangle",
                                                "ring", "cross",  "stripes"};
struct Colour {
  const char* name;
  std::array<float, 3> rgb;
};
constexpr std::array<Colour, 8> kColours = {{{"red", {0.9F, 0.1F, 0.1F}},
                                             {"green", {0.1F, 0.8F, 0.15F}},
                                             {"blue", {0.15F, 0.2F, 0.95F}},
                                             {"yellow", {0.95F, 0.9F, 0.1F}},
                                             {"magenta", {0.9F, 0.1F, 0.9F}},
                                             {"cyan", {0.1F, 0.9F, 0.9F}},
                                             {"white", {1.0F, 1.0F, 1.0F}},
                                             {"black", {0.0F, 0.0F, 0.0F}}}};
constexpr std::size_t kKinds = kShapes.size() * kColours.size();

/// Colour turns first, so that few classes differ in both.
std::size_t shape_of(std::int64_t label) {
  const std::size_t kind = static_cast<std::size_t>(label) % kKinds;
  return (kind + kind / 24) % kShapes.size();
}
std::size_t colour_of(std::int64_t label) {
  return static_cast<std::size_t>(label) % kKinds % kColours.size();
}

/// True if a shape covers (x, y), where the square [-1, 1] x [-1, 1] is around it.
bool covers(std::size_t shape, float x, float y) {
  const float radius = std::sqrt(x * x + y * y);
  if (std::max(std::abs(x), std::abs(y)) > 1) return false;
  switch (shape) {
    case 0: return radius <= 1;
    case 1: return true;
    case 2: return std::abs(x) <= (y + 1) / 2;
    case 3: return radius <= 1 && radius >= 0.55F;
    case 4: return std::min(std::abs(x), std::abs(y)) <= 0.3F;
    default: return static_cast<int>((y + 1) * 2.5F) % 2 == 0;
  }
}

/// Uniform numbers of one image.
class Numbers {
 public:
  Numbers(std::uint64_t seed, std::int64_t image)
      : seed_(seed), stream_(name_hash("drawn images") ^ static_cast<std::uint64_t>(image)) {}
  [[nodiscard]] float at(std::uint64_t place) const {
    return philox_uniform(philox(philox_counter(place / 4, stream_), seed_).x[place % 4]);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

/// pixels: (size, size, 3).
void draw(std::int64_t label, const Numbers& numbers, std::int64_t size, std::uint8_t* pixels) {
  const auto side = static_cast<float>(size);
  const float radius = side * (0.22F + 0.18F * numbers.at(0));
  const float centre_x = radius + (side - 2 * radius) * numbers.at(1);
  const float centre_y = radius + (side - 2 * radius) * numbers.at(2);
  const float grey = 0.3F + 0.4F * numbers.at(3);
  const float shade = 0.85F + 0.15F * numbers.at(4);
  const std::array<float, 3>& rgb = kColours[colour_of(label)].rgb;
  std::uint64_t place = 8;
  for (std::int64_t y = 0; y < size; ++y) {
    for (std::int64_t x = 0; x < size; ++x, ++place) {
      const bool inside =
          covers(shape_of(label), (static_cast<float>(x) + 0.5F - centre_x) / radius,
                 (static_cast<float>(y) + 0.5F - centre_y) / radius);
      const float noise = 0.2F * (numbers.at(place) - 0.5F);
      for (const float channel : rgb) {
        const float value = (inside ? shade * channel : grey) + noise;
        *pixels++ = static_cast<std::uint8_t>(std::lround(255 * std::clamp(value, 0.0F, 1.0F)));
      }
    }
  }
}

}  // namespace

DrawnImages::DrawnImages(const ImageSetOptions& options) : options_(options) {
  require(options.classes > 0 && options.size > 0 &&
              options.size <= std::int64_t{1} << 12,  // 2^24 pixels
          "drawn images need classes and a size");
  for (std::int64_t label = 0; label < options.classes; ++label) {
    const auto kind = static_cast<std::size_t>(label) / kKinds;
    classes_.push_back(
        fmt::format("{} {}", kColours[colour_of(label)].name, kShapes[shape_of(label)]));
    if (kind > 0) classes_.back() += fmt::format(" {}", kind);
  }
  const auto side = static_cast<std::int32_t>(options.size);
  const std::string header = ppm_header({side, side});
  image_bytes_ = header.size() + static_cast<std::size_t>(3 * options.size * options.size);
  count_ = std::clamp<std::int64_t>(kMostBytes / static_cast<std::int64_t>(image_bytes_), 1,
                                    kMostImages);
  memory_.resize(image_bytes_ * static_cast<std::size_t>(count_));
#pragma omp parallel for schedule(dynamic, 8)
  for (std::int64_t i = 0; i < count_; ++i) {
    std::byte* const begin = memory_.data() + image_bytes_ * static_cast<std::size_t>(i);
    std::memcpy(begin, header.data(), header.size());
    draw(label(i), Numbers(options_.seed, i), options_.size,
         reinterpret_cast<std::uint8_t*>(begin + header.size()));
  }
}

std::int32_t DrawnImages::label(std::int64_t index) const {
  return static_cast<std::int32_t>(index % options_.classes);
}

std::span<const std::byte> DrawnImages::bytes(std::int64_t index) const {
  require(index >= 0 && index < count_, "an image beyond the end of the set");
  return std::span(memory_).subspan(image_bytes_ * static_cast<std::size_t>(index), image_bytes_);
}

std::string DrawnImages::name(std::int64_t index) const {
  return fmt::format("synthetic: image {}", index);
}

std::string DrawnImages::description() const {
  return fmt::format("synthetic: {} drawn images of {} classes, {} x {} pixels", count_,
                     options_.classes, options_.size, options_.size);
}

std::uint64_t DrawnImages::fingerprint() const {
  return name_hash(
      fmt::format("drawn images {} {} {}", options_.classes, options_.size, options_.seed));
}

}  // namespace hyperslab::io
