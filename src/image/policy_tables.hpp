// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace hyperslab::image {

/// The search space of AutoAugment (Cubuk et al. 2019, table 6) without sample pairing and cutout.
enum class PolicyOperation : std::uint8_t {
  identity,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  autocontrast,
  equalize,
  invert
};

struct PolicyStep {
  PolicyOperation operation;
  double probability;
  int magnitude;  ///< 0 to 9; without meaning for operations that have none
};
using SubPolicy = std::array<PolicyStep, 2>;
using PolicyTable = std::array<SubPolicy, 25>;

namespace policy_tables {
using enum PolicyOperation;

// Cubuk et al. 2019, "AutoAugment: Learning Augmentation Strategies from Data", table 7.
inline constexpr PolicyTable kCifar10 = {{
    {{{invert, 0.1, 0}, {contrast, 0.2, 6}}},
    {{{rotate, 0.7, 2}, {translate_x, 0.3, 9}}},
    {{{sharpness, 0.8, 1}, {sharpness, 0.9, 3}}},
    {{{shear_y, 0.5, 8}, {translate_y, 0.7, 9}}},
    {{{autocontrast, 0.5, 0}, {equalize, 0.9, 0}}},
    {{{shear_y, 0.2, 7}, {posterize, 0.3, 7}}},
    {{{color, 0.4, 3}, {brightness, 0.6, 7}}},
    {{{sharpness, 0.3, 9}, {brightness, 0.7, 9}}},
    {{{equalize, 0.6, 0}, {equalize, 0.5, 0}}},
    {{{contrast, 0.6, 7}, {sharpness, 0.6, 5}}},
    {{{color, 0.7, 7}, {translate_x, 0.5, 8}}},
    {{{equalize, 0.3, 0}, {autocontrast, 0.4, 0}}},
    {{{translate_y, 0.4, 3}, {sharpness, 0.2, 6}}},
    {{{brightness, 0.9, 6}, {color, 0.2, 8}}},
    {{{solarize, 0.5, 2}, {invert, 0, 0}}},
    {{{equalize, 0.2, 0}, {autocontrast, 0.6, 0}}},
    {{{equalize, 0.2, 0}, {equalize, 0.6, 0}}},
    {{{color, 0.9, 9}, {equalize, 0.6, 0}}},
    {{{autocontrast, 0.8, 0}, {solarize, 0.2, 8}}},
    {{{brightness, 0.1, 3}, {color, 0.7, 0}}},
    {{{solarize, 0.4, 5}, {autocontrast, 0.9, 0}}},
    {{{translate_y, 0.9, 9}, {translate_y, 0.7, 9}}},
    {{{autocontrast, 0.9, 0}, {solarize, 0.8, 3}}},
    {{{equalize, 0.8, 0}, {invert, 0.1, 0}}},
    {{{translate_y, 0.7, 9}, {autocontrast, 0.9, 0}}},
}};

// ImageNet, table 9.
inline constexpr PolicyTable kImageNet = {{
    {{{posterize, 0.4, 8}, {rotate, 0.6, 9}}},  {{{solarize, 0.6, 5}, {autocontrast, 0.6, 0}}},
    {{{equalize, 0.8, 0}, {equalize, 0.6, 0}}}, {{{posterize, 0.6, 7}, {posterize, 0.6, 6}}},
    {{{equalize, 0.4, 0}, {solarize, 0.2, 4}}}, {{{equalize, 0.4, 0}, {rotate, 0.8, 8}}},
    {{{solarize, 0.6, 3}, {equalize, 0.6, 0}}}, {{{posterize, 0.8, 5}, {equalize, 1, 0}}},
    {{{rotate, 0.2, 3}, {solarize, 0.6, 8}}},   {{{equalize, 0.6, 0}, {posterize, 0.4, 6}}},
    {{{rotate, 0.8, 8}, {color, 0.4, 0}}},      {{{rotate, 0.4, 9}, {equalize, 0.6, 0}}},
    {{{equalize, 0, 0}, {equalize, 0.8, 0}}},   {{{invert, 0.6, 0}, {equalize, 1, 0}}},
    {{{color, 0.6, 4}, {contrast, 1, 8}}},      {{{rotate, 0.8, 8}, {color, 1, 2}}},
    {{{color, 0.8, 8}, {solarize, 0.8, 7}}},    {{{sharpness, 0.4, 7}, {invert, 0.6, 0}}},
    {{{shear_x, 0.6, 5}, {equalize, 1, 0}}},    {{{color, 0.4, 0}, {equalize, 0.6, 0}}},
    {{{equalize, 0.4, 0}, {solarize, 0.2, 4}}}, {{{solarize, 0.6, 5}, {autocontrast, 0.6, 0}}},
    {{{invert, 0.6, 0}, {equalize, 1, 0}}},     {{{color, 0.6, 4}, {contrast, 1, 8}}},
    {{{equalize, 0.8, 0}, {equalize, 0.6, 0}}},
}};

}  // namespace policy_tables
}  // namespace hyperslab::image
