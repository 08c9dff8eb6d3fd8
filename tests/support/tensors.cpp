// SPDX-License-Identifier: Apache-2.0
#include "support/tensors.hpp"

#include <cmath>
#include <limits>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::test {
namespace {

void store(View view, std::size_t i, double value) {
  switch (view.dtype()) {
    case DType::f64: view.data<double>()[i] = value; break;
    case DType::f32: view.data<float>()[i] = static_cast<float>(value); break;
    case DType::bf16: view.data<bf16>()[i] = to_bf16(static_cast<float>(value)); break;
    case DType::f16: view.data<f16>()[i] = to_f16(static_cast<float>(value)); break;
    case DType::i64: view.data<std::int64_t>()[i] = static_cast<std::int64_t>(value); break;
    case DType::i32: view.data<std::int32_t>()[i] = static_cast<std::int32_t>(value); break;
    case DType::u16: view.data<std::uint16_t>()[i] = static_cast<std::uint16_t>(value); break;
    case DType::u8: view.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(value); break;
  }
}

double load(CView view, std::size_t i) {
  switch (view.dtype()) {
    case DType::f64: return view.data<double>()[i];
    case DType::f32: return view.data<float>()[i];
    case DType::bf16: return to_float(view.data<bf16>()[i]);
    case DType::f16: return to_float(view.data<f16>()[i]);
    case DType::i64: return static_cast<double>(view.data<std::int64_t>()[i]);
    case DType::i32: return view.data<std::int32_t>()[i];
    case DType::u16: return view.data<std::uint16_t>()[i];
    case DType::u8: return view.data<std::uint8_t>()[i];
  }
  return 0;
}

}  // namespace

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64: return 1e-11;
    case DType::f32: return 2e-5;
    case DType::bf16: return 2e-2;
    case DType::f16: return 4e-3;
    default: return 0;
  }
}

Tensor random_tensor(DType dtype, const Shape& shape, std::uint64_t seed, double std_deviation) {
  Tensor out(Device::cpu, dtype, shape);
  std::vector<float> normals(static_cast<std::size_t>(shape.numel()));
  fill_normal(normals.data(), 0, normals.size(), seed, name_hash("test"), 1.0F);
  for (std::size_t i = 0; i < normals.size(); ++i) {
    store(out.view(), i, std_deviation * normals[i]);
  }
  return out;
}

Tensor filled_tensor(DType dtype, const Shape& shape, double value) {
  Tensor out(Device::cpu, dtype, shape);
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.numel()); ++i) {
    store(out.view(), i, value);
  }
  return out;
}

Tensor int_tensor(const Shape& shape, const std::vector<std::int32_t>& values) {
  return tensor_of(DType::i32, shape, {values.begin(), values.end()});
}

Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  require(static_cast<std::size_t>(shape.numel()) == values.size(), "wrong number of values");
  Tensor out(Device::cpu, dtype, shape);
  for (std::size_t i = 0; i < values.size(); ++i) store(out.view(), i, values[i]);
  return out;
}

std::vector<double> to_doubles(CView view) {
  std::vector<double> out(static_cast<std::size_t>(view.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load(view, i);
  return out;
}

double relative_difference(CView a, CView b, double floor) {
  double difference = 0;
  double magnitude = floor;
  for (std::size_t i = 0; i < static_cast<std::size_t>(b.numel()); ++i) {
    const double x = load(a, i);
    const double y = load(b, i);
    if (!(std::isfinite(x) && std::isfinite(y))) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, std::abs(x - y));
    magnitude = std::max(magnitude, std::abs(y));
  }
  return difference / magnitude;
}

void expect_close(CView a, CView b, std::string_view what, double slack) {
  ASSERT_TRUE(a.shape() == b.shape())
      << what << ": " << a.shape().str() << " and " << b.shape().str();
  EXPECT_LE(relative_difference(a, b), slack * tolerance(a.dtype())) << what;
}

}  // namespace hyperslab::test
