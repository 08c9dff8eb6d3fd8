// SPDX-License-Identifier: Apache-2.0
#include "quantized_arrays.hpp"

#include "hyperslab/core/round_up.hpp"

namespace hyperslab::sharding {

std::string label_of(const param::QuantizedWeight& weight) {
  const std::string& name = weight.members.front()->name;
  return weight.members.size() == 1
             ? name
             : name + " and " + std::to_string(weight.members.size() - 1) + " more";
}

ops::QuantizedMatrix quantized_arrays(const param::QuantizedWeight& weight, const TakeArray& take) {
  const Dim M = weight.shape[0];
  const Dim K = weight.shape[1];
  const Dim group = weight.spec.group_of(K);
  const ops::WeightFormat format = weight.spec.format;
  ops::QuantizedMatrix matrix = {format, group, weight.shape, {}, {}};
  matrix.codes = take(DType::u8, {M, format == ops::WeightFormat::int8 ? K : K / 2}, ".codes");
  switch (format) {
    case ops::WeightFormat::int8: matrix.scales = take(DType::f32, {M}, ".scales"); break;
    case ops::WeightFormat::int4:
      matrix.scales = take(DType::f16, {M, K / group}, ".scales");
      break;
    case ops::WeightFormat::nf4:
      matrix.scales = take(DType::u8, {M, K / group}, ".scales");
      const Dim blocks = round_up(M * K / group, ops::kScaleBlock) / ops::kScaleBlock;
      matrix.block_scales = take(DType::f32, {blocks}, ".block_scales");
      break;
  }
  return matrix;
}

ops::QuantizedMatrix quantized_arrays(const param::QuantizedWeight& weight, Arena& arena) {
  const std::string label = label_of(weight);
  return quantized_arrays(weight, [&](DType dtype, const Shape& shape, const char* array) {
    return arena.take(dtype, shape, label + array);
  });
}

}  // namespace hyperslab::sharding
