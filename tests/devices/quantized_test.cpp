// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/quantized.hpp"

#include <cmath>
#include <limits>

#include "ops/quantized_case.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class Quantized : public DevicesTest {};

const std::vector<GroupedFormat> kFormats = {{WeightFormat::int8, 0},   {WeightFormat::int4, 32},
                                             {WeightFormat::int4, 64},  {WeightFormat::int4, 128},
                                             {WeightFormat::int4, 256}, {WeightFormat::int4, 24},
                                             {WeightFormat::int4, 6},   {WeightFormat::nf4, 64}};

struct Size {
  Dim M, K;
};
/// Less than a tile of rows, several block scales of nf4, long rows; and odd ones.
const std::vector<Size> kSizes = {{1, 256}, {17, 768}, {40, 2304}, {3, 14336}, {5, 6}, {7, 1001}};

Dim group_of(const GroupedFormat& format, Dim K) { return format.group == 0 ? K : format.group; }
bool holds(const GroupedFormat& format, Dim K) { return K % group_of(format, K) == 0; }

std::string label(const GroupedFormat& format, const Size& size) {
  return std::string(name_of(format.format)) + " in groups of " +
         std::to_string(group_of(format, size.K)) + ", " + Shape{size.M, size.K}.str();
}

StoredMatrix arrays_for(const GroupedFormat& format, const Size& size) {
  return stored_matrix(format, size.M, size.K);
}
QuantizedMatrix matrix_of(const GroupedFormat& format, const Size& size, View codes, View scales,
                          View block_scales) {
  return {format.format,    group_of(format, size.K),
          {size.M, size.K}, codes,
          scales,           format.format == WeightFormat::nf4 ? block_scales : View()};
}

/// Normals of mixed magnitude, with a group of zeros and with ties.
Tensor weights(DType dtype, const Size& size) {
  Tensor out = random_tensor(dtype, {size.M, size.K}, 11, 0.02);
  auto values = to_doubles(out.view());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i / 64 % 5 == 3) values[i] = 0;
    if (i / 64 % 7 == 2) values[i] *= 30;
    if (i / 64 % 7 == 4) values[i] = (double(i % 15) - 7.0) / 2;
  }
  return tensor_of(dtype, {size.M, size.K}, values);
}

StoredMatrix quantized_on_cpu(const GroupedFormat& format, const Size& size, DType dtype) {
  StoredMatrix out = arrays_for(format, size);
  Context ctx(Device::cpu);
  quantize(ctx, weights(dtype, size).view(), out.matrix);
  return out;
}

constexpr std::size_t kWorkspace = std::size_t{64} << 20;

/// The same call on the CPU, in the same dtypes.
std::vector<Tensor> on_cpu(const std::vector<const Tensor*>& operands, const Problem::Call& call) {
  Context ctx(Device::cpu, kWorkspace);
  std::vector<Tensor> out;
  Views views;
  for (const Tensor* operand : operands) {
    out.push_back(operand->clone());
    views.push_back(out.back().view());
  }
  call(ctx, views);
  return out;
}

/// EXPECTs the bits of the CPU in every operand, aligned and not.
void expect_same_bits(DType dtype, const std::vector<const Tensor*>& operands,
                      const Problem::Call& call, const std::string& what) {
  Problem problem(dtype);
  for (const Tensor* operand : operands) problem.in_out(operand->clone());
  const auto expected = on_cpu(operands, call);
  problem.on_each(call, [&](const Results& found) {
    for (std::size_t i = 0; i < operands.size(); ++i) {
      EXPECT_TRUE(same_bits(found[i].view(), expected[i].view())) << what << ", operand " << i;
    }
  });
}

template <class Body>
void for_all(const Body& body) {
  for (const DType dtype : compute_types()) {
    for (const GroupedFormat& format : kFormats) {
      for (const Size& size : kSizes) {
        if (holds(format, size.K)) body(dtype, format, size);
      }
    }
  }
}

TEST_F(Quantized, QuantizeHasTheBitsOfTheCpu) {
  for_all([](DType dtype, const GroupedFormat& format, const Size& size) {
    const Tensor weight = weights(dtype, size);
    const StoredMatrix out = arrays_for(format, size);
    expect_same_bits(
        dtype, {&weight, &out.codes, &out.scales, &out.block_scales},
        [&](Context& ctx, const Views& v) {
          quantize(ctx, v[0], matrix_of(format, size, v[1], v[2], v[3]));
        },
        "quantize to " + label(format, size));
  });
}

TEST_F(Quantized, DequantizeHasTheBitsOfTheCpu) {
  for_all([](DType dtype, const GroupedFormat& format, const Size& size) {
    const StoredMatrix in = quantized_on_cpu(format, size, dtype);
    const Tensor out = poisoned(dtype, {size.M, size.K});
    expect_same_bits(
        dtype, {&in.codes, &in.scales, &in.block_scales, &out},
        [&](Context& ctx, const Views& v) {
          dequantize(ctx, as_const(matrix_of(format, size, v[0], v[1], v[2])), v[3]);
        },
        "dequantize from " + label(format, size));
  });
}

TEST_F(Quantized, FakeQuantizeHasTheBitsOfTheCpuAndOfBothSteps) {
  for_all([](DType dtype, const GroupedFormat& format, const Size& size) {
    const Tensor weight = weights(dtype, size);
    const Tensor out = poisoned(dtype, {size.M, size.K});
    const auto fake = [&](Context& ctx, const Views& v) {
      fake_quantize(ctx, format.format, group_of(format, size.K), v[0], v[1]);
      fake_quantize(ctx, format.format, group_of(format, size.K), v[0], v[0]);  // in place
    };
    expect_same_bits(dtype, {&weight, &out}, fake, "fake_quantize to " + label(format, size));
    const StoredMatrix arrays = arrays_for(format, size);
    Problem both(dtype);
    both.input(weight.clone())
        .input(arrays.codes.clone())
        .input(arrays.scales.clone())
        .input(arrays.block_scales.clone())
        .output(dtype, {size.M, size.K})
        .output(dtype, {size.M, size.K});
    const auto steps = [&](Context& ctx, const Views& v) {
      const QuantizedMatrix matrix = matrix_of(format, size, v[1], v[2], v[3]);
      quantize(ctx, v[0], matrix);
      dequantize(ctx, as_const(matrix), v[4]);
      fake_quantize(ctx, format.format, matrix.group, v[0], v[5]);
    };
    both.on_each(steps, [&](const Results& found) {
      EXPECT_TRUE(same_bits(found[4].view(), found[5].view())) << label(format, size);
    });
  });
}

/// Scales of rows, and rows rounded by scales that are twice what they need.
TEST_F(Quantized, GivenScalesGiveTheBitsOfTheCpu) {
  const GroupedFormat format = {WeightFormat::int8, 0};
  for (const DType dtype : compute_types()) {
    for (const Size& size : kSizes) {
      const Tensor weight = weights(dtype, size);
      const StoredMatrix out = arrays_for(format, size);
      const Tensor given = filled_tensor(DType::f32, {size.M}, 0.0625);
      const Tensor rounded = poisoned(dtype, {size.M, size.K});
      expect_same_bits(
          dtype, {&weight, &out.codes, &out.scales, &given, &rounded},
          [&](Context& ctx, const Views& v) {
            quantize_scaled(ctx, v[0], matrix_of(format, size, v[1], v[3], {}));
            int8_row_scales(ctx, v[0], v[2]);
            fake_quantize_scaled(ctx, v[0], v[3], v[4]);
            fake_quantize_scaled(ctx, v[0], v[2], v[0]);  // in place
          },
          "given scales of " + label(format, size));
    }
  }
}

/// A product with weights that the CPU made.
struct Product {
  DType dtype;
  GroupedFormat format;
  Size size;
  Dim rows;
  bool bias;
  ActivationFormat activations = ActivationFormat::none;

  [[nodiscard]] std::string str() const {
    return std::to_string(rows) + " rows" + (bias ? " and a bias" : "") + ", " +
           std::string(name_of(dtype)) + " by " + label(format, size);
  }
  /// Operands x, bias, codes, scales, block scales, y.
  [[nodiscard]] std::vector<Tensor> operands() const {
    StoredMatrix arrays = quantized_on_cpu(format, size, DType::f32);
    std::vector<Tensor> out;
    out.push_back(random_tensor(dtype, {rows, size.K}, 1, 1 / std::sqrt(double(size.K))));
    out.push_back(random_tensor(dtype, {size.M}, 3));
    out.push_back(std::move(arrays.codes));
    out.push_back(std::move(arrays.scales));
    out.push_back(std::move(arrays.block_scales));
    out.push_back(poisoned(dtype, {rows, size.M}));
    return out;
  }
  [[nodiscard]] Problem::Call call() const {
    return [*this](Context& ctx, const Views& v) {
      quantized_linear_forward(ctx, v[0], as_const(matrix_of(format, size, v[2], v[3], v[4])),
                               bias ? CView(v[1]) : CView(), activations, v[5]);
    };
  }
};

/// x, bias and y are rounded for the oracle, the weights are what they are.
Problem problem_of(const Product& product) {
  Problem problem(product.dtype);
  auto operands = product.operands();
  problem.input(std::move(operands[0])).input(std::move(operands[1]));
  for (const std::size_t i : {2, 3, 4}) problem.fixed(std::move(operands[i]));
  problem.in_out(std::move(operands[5]));
  return problem;
}

void expect_match(const Product& product) {
  problem_of(product).expect_match(product.call(), "quantized_linear_forward of " + product.str());
}

TEST_F(Quantized, LinearMatchesTheOracle) {
  for (const DType dtype : compute_types()) {
    for (const GroupedFormat& format : kFormats) {
      for (const Size& size : kSizes) {
        if (!holds(format, size.K)) continue;
        for (const Dim rows : {1, 2, 5, 8, 9, 33}) {
          expect_match({dtype, format, size, rows, rows % 2 == 1});
        }
      }
    }
  }
}

TEST_F(Quantized, CodesAtOddAddressesMultiplyToo) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const GroupedFormat& format : kFormats) {
      if (!holds(format, 2304)) continue;
      for (const Dim rows : {3, 20}) {
        const Product product = {dtype, format, {17, 2304}, rows, true};
        Problem problem(dtype);
        for (Tensor& operand : product.operands()) problem.input(std::move(operand));
        for (const Device device : problem.devices()) {
          const auto straight = problem.on(device, product.call());
          const auto odd = problem.on(device, product.call(), 1);
          EXPECT_LE(relative_difference(odd[5].view(), straight[5].view()), tolerance(dtype))
              << product.str() << " on " << name_of(device);
        }
      }
    }
  }
}

/// The operands with x, bias and y in another dtype.
std::vector<Tensor> in_dtype(const std::vector<Tensor>& operands, DType dtype) {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool is_real = i == 0 || i == 1 || i == 5;
    const CView view = operands[i].view();
    out.push_back(is_real ? tensor_of(dtype, view.shape(), to_doubles(view)) : operands[i].clone());
  }
  return out;
}

/// The CPU computes in f32, and rounds its result to the dtype once, as a GPU does.
void expect_bits_of_f32(const Product& product) {
  const auto operands = product.operands();
  const auto real = in_dtype(operands, DType::f32);
  std::vector<const Tensor*> pointers;
  for (const Tensor& operand : real) pointers.push_back(&operand);
  const auto expected = in_dtype(on_cpu(pointers, product.call()), product.dtype);
  Problem problem(product.dtype);
  for (const Tensor& operand : operands) problem.in_out(operand.clone());
  problem.on_each(product.call(), [&](const Results& found) {
    EXPECT_TRUE(same_bits(found[5].view(), expected[5].view())) << product.str();
  });
}

/// What one row's kernel has of its own: the columns of a lane, tiles that a block takes after
/// another, more columns than it has shared memory for.
TEST_F(Quantized, OneRowMatchesTheOracleForAllTilesAndColumns) {
  for (const DType dtype : compute_types()) {
    for (const GroupedFormat& format :
         {GroupedFormat{WeightFormat::int8, 0}, GroupedFormat{WeightFormat::int4, 32},
          GroupedFormat{WeightFormat::int4, 64}}) {
      for (const Size& size :
           std::vector<Size>{{16, 64}, {33, 1088}, {20000, 128}, {8, 4160}, {24, 20480}}) {
        expect_match({dtype, format, size, 1, true});
      }
    }
  }
}

TEST_F(Quantized, NotANumberInOneRowComesOut) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      for (const GroupedFormat& format :
           {GroupedFormat{WeightFormat::int8, 0}, GroupedFormat{WeightFormat::int4, 64}}) {
        const Product product = {dtype, format, {40, 512}, 1, false};
        auto operands = product.operands();
        auto x = to_doubles(operands[0].view());
        x[200] = bad;
        operands[0] = tensor_of(dtype, {1, 512}, x);
        Problem problem(dtype);
        for (Tensor& operand : operands) problem.in_out(std::move(operand));
        const auto check = [&](const Results& found) {
          for (const double y : to_doubles(found[5].view())) {
            EXPECT_FALSE(std::isfinite(y)) << product.str();
          }
        };
        problem.on_each(product.call(), check, {0});
      }
    }
  }
}

TEST_F(Quantized, Int8ActivationsHaveTheBitsOfTheCpu) {
  for (const DType dtype : compute_types()) {
    for (const Size& size : std::vector<Size>{
             {1, 16}, {17, 768}, {64, 2304}, {40, 14336}, {5, 6}, {7, 1001}, {12, 20}}) {
      for (const Dim rows : {1, 3, 8, 9, 64, 130}) {
        for (const bool bias : {false, true}) {
          const Product product = {dtype, {WeightFormat::int8, 0},       size, rows,
                                   bias,  ActivationFormat::dynamic_int8};
          expect_bits_of_f32(product);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
