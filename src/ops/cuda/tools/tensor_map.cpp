// SPDX-License-Identifier: Apache-2.0
#include "tensor_map.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "hyperslab/core/driver_function.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr std::size_t kMostDimensions = 5;

template <class To>
std::array<To, kMostDimensions> as(std::initializer_list<Dim> values) {
  std::array<To, kMostDimensions> out{};
  std::ranges::transform(values, out.begin(), [](Dim value) { return static_cast<To>(value); });
  return out;
}

}  // namespace

CUtensorMap tensor_map(const char* op, const void* from, const TensorMapShape& shape) {
  const auto sizes = as<cuuint64_t>(shape.sizes);
  const auto strides = as<cuuint64_t>(shape.strides_bytes);
  const auto box = as<cuuint32_t>(shape.box);
  const auto steps = as<cuuint32_t>({1, 1, 1, 1, 1});
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>(op, "cuTensorMapEncodeTiled");
  CUtensorMap map;
  const CUresult result =
      encode(&map, shape.type, static_cast<cuuint32_t>(shape.sizes.size()), const_cast<void*>(from),
             sizes.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             shape.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  std::string text;
  for (const Dim size : shape.sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  throw Error(ExitCode::device, std::string(op) + ": cuTensorMapEncodeTiled refused an array of " +
                                    text + " elements (" +
                                    std::to_string(static_cast<int>(result)) + ")");
}

}  // namespace hyperslab::ops::cuda
