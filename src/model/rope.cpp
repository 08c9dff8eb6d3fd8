// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/rope.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hyperslab::model {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double llama3_frequency(const RopeSpec& spec, double frequency) {
  const auto context = static_cast<double>(spec.original_context);
  const double wavelength = kTurn / frequency;
  if (wavelength > context / spec.low_factor) return frequency / spec.factor;
  if (wavelength < context / spec.high_factor) return frequency;
  const double unchanged =
      (context / wavelength - spec.low_factor) / (spec.high_factor - spec.low_factor);
  return (1 - unchanged) * frequency / spec.factor + unchanged * frequency;
}

/// Between these pairs of dimensions YaRN goes over from unchanged to divided angles.
struct Ramp {
  double first = 0;
  double last = 0;
};
Ramp yarn_ramp(const RopeSpec& spec, Dim width) {
  const auto context = static_cast<double>(spec.original_context);
  const auto all = static_cast<double>(width);
  const auto pair_of = [&](double turns) {
    return all * std::log(context / (turns * kTurn)) / (2 * std::log(spec.theta));
  };
  Ramp ramp = {std::max(std::floor(pair_of(spec.beta_fast)), 0.0),
               std::min(std::ceil(pair_of(spec.beta_slow)), all - 1)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

double yarn_frequency(const RopeSpec& spec, const Ramp& ramp, std::size_t pair, double frequency) {
  const double divided =
      std::clamp((static_cast<double>(pair) - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
  return divided * frequency / spec.factor + (1 - divided) * frequency;
}

double yarn_magnitude(const RopeSpec& spec) {
  if (spec.attention_factor > 0) return spec.attention_factor;
  return spec.factor <= 1 ? 1 : 0.1 * std::log(spec.factor) + 1;
}

}  // namespace

Dim rotated_width(const RopeSpec& spec, Dim head_width) {
  return static_cast<Dim>(static_cast<double>(head_width) * spec.fraction);
}

RopeAngles rope_angles(const RopeSpec& spec, Dim head_width) {
  const Dim width = rotated_width(spec, head_width);
  const bool yarn = spec.scaling == RopeScaling::yarn;
  const Ramp ramp = yarn ? yarn_ramp(spec, width) : Ramp();
  RopeAngles angles;
  for (std::size_t pair = 0; pair < static_cast<std::size_t>(width / 2); ++pair) {
    const double frequency =
        std::pow(spec.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
    switch (spec.scaling) {
      case RopeScaling::none: angles.frequencies.push_back(frequency); break;
      case RopeScaling::linear: angles.frequencies.push_back(frequency / spec.factor); break;
      case RopeScaling::llama3:
        angles.frequencies.push_back(llama3_frequency(spec, frequency));
        break;
      case RopeScaling::yarn:
        angles.frequencies.push_back(yarn_frequency(spec, ramp, pair, frequency));
        break;
    }
  }
  if (yarn) angles.magnitude = yarn_magnitude(spec);
  return angles;
}

}  // namespace hyperslab::model
