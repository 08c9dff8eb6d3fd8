// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/resolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace hyperslab::train {
namespace {

constexpr const char* kPositions = "model/embedding.position.weight";
constexpr std::string_view kImage = "image=";

/// Keys' cubic convolution with a = -0.5.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0;
}

/// The weights with which one point of the new grid takes points of the old one.
struct Taps {
  Dim first = 0;
  std::vector<double> weights;
};

std::vector<Taps> taps_of(Dim from, Dim to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double width = std::max(scale, 1.0);
  std::vector<Taps> out;
  for (Dim i = 0; i < to; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const Dim begin = std::max<Dim>(std::lround(center - 2 * width), 0);
    const Dim end = std::min<Dim>(std::lround(center + 2 * width), from);
    Taps taps = {begin, {}};
    double sum = 0;
    for (Dim j = begin; j < end; ++j) {
      taps.weights.push_back(cubic((static_cast<double>(j) - center + 0.5) / width));
      sum += taps.weights.back();
    }
    for (double& weight : taps.weights) weight /= sum;
    out.push_back(std::move(taps));
  }
  return out;
}

/// (outer, from, inner) -> (outer, to, inner).
std::vector<double> resampled(const std::vector<double>& in, Dim outer, Dim inner,
                              const std::vector<Taps>& taps) {
  const Dim to = std::ssize(taps);
  const Dim from = std::ssize(in) / (outer * inner);
  std::vector<double> out(static_cast<std::size_t>(outer * to * inner));
  for (Dim o = 0; o < outer; ++o) {
    for (Dim i = 0; i < to; ++i) {
      const Taps& tap = taps[static_cast<std::size_t>(i)];
      for (std::size_t k = 0; k < tap.weights.size(); ++k) {
        const Dim source = (o * from + tap.first + static_cast<Dim>(k)) * inner;
        for (Dim c = 0; c < inner; ++c) {
          out[static_cast<std::size_t>((o * to + i) * inner + c)] +=
              tap.weights[k] * in[static_cast<std::size_t>(source + c)];
        }
      }
    }
  }
  return out;
}

/// Rows and columns of pixels that a checkpoint of the same model is of, or 0.
Dim other_resolution(const std::string& stored, const model::ModelSpec& spec) {
  const auto differences = model::differing_choices(stored, model::identity(spec));
  if (differences.size() != 1 || !differences.front().first.starts_with(kImage)) return 0;
  return std::strtoll(differences.front().first.c_str() + kImage.size(), nullptr, 10);
}

}  // namespace

Tensor resampled_positions(CView table, Dim first, Dim from, Dim to) {
  const auto [rows, C] = table.dims<2>("positions");
  require(rows == first + from * from, "positions: the table is not of this grid");
  const auto values = table.span<float>();
  const auto before = static_cast<std::ptrdiff_t>(first * C);
  const std::vector<double> grid(values.begin() + before, values.end());
  const std::vector<Taps> taps = taps_of(from, to);
  const std::vector<double> columns = resampled(grid, from, C, taps);
  const std::vector<double> all = resampled(columns, 1, to * C, taps);
  Tensor out(Device::cpu, DType::f32, {first + to * to, C});
  const auto target = out.view().span<float>();
  std::copy(values.begin(), values.begin() + before, target.begin());
  std::ranges::transform(all, target.begin() + before,
                         [](double value) { return static_cast<float>(value); });
  return out;
}

Dim fit_resolution(io::CheckpointReader& reader, const model::ModelSpec& spec) {
  if (!spec.is_of_images()) return 0;
  const Dim size = other_resolution(reader.meta().model, spec);
  if (size < spec.image.patch || size % spec.image.patch != 0) return 0;
  const Dim from = size / spec.image.patch;
  const Dim first = spec.image.tokens() - spec.image.patches();
  const auto found = reader.tensors().find(kPositions);
  if (found != reader.tensors().end()) {
    const Shape shape = {first + from * from, spec.width};
    Tensor table(Device::cpu, DType::f32, shape);
    const io::SlabTarget target = {kPositions, shape, Hyperslab::whole(shape), table.view()};
    reader.read({&target, 1});
    reader.replace(kPositions, resampled_positions(table.view(), first, from, spec.image.grid()));
  }
  reader.set_model(model::identity(spec));
  return size;
}

}  // namespace hyperslab::train
