// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dtypes.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace hyperslab::io {
namespace {

constexpr std::array kStorable = {DType::f32, DType::f16, DType::u8};

}  // namespace

bool is_storable(DType dtype) { return std::ranges::count(kStorable, dtype) > 0; }

DType storable_dtype(const std::string& name) {
  for (const DType dtype : kStorable) {
    if (name == name_of(dtype)) return dtype;
  }
  throw std::invalid_argument("dtype " + name + " is none of f32, f16, u8");
}

}  // namespace hyperslab::io
