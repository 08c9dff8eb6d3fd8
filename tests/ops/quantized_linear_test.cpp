// SPDX-License-Identifier: Apache-2.0
#include "cpu/quantized_linear.hpp"

#include <omp.h>

#include <cmath>

#include "hyperslab/ops/matmul.hpp"
#include "quantized_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

struct Sizes {
  Dim rows;
  Dim M;
  Dim K;
};

class QuantizedLinear : public OpsTest {
 protected:
  StoredMatrix quantized(const GroupedFormat& format, const Tensor& weight) {
    StoredMatrix out = stored_matrix(format, weight.view().shape()[0], weight.view().shape()[1]);
    quantize(ctx, weight.view(), out.matrix);
    return out;
  }
};

/// The product by its definition: codes of x as a matrix of WeightFormat::int8 has them, a sum of
/// integers, then f32 in the order that the declaration names.
template <class T>
std::vector<double> by_definition(const StoredMatrix& x, const StoredMatrix& weight,
                                  const Tensor* bias) {
  const auto [M, K] = weight.matrix.codes.dims<2>("codes");
  const Dim rows = x.matrix.shape[0];
  const auto* left = reinterpret_cast<const std::int8_t*>(x.codes.view().data<std::uint8_t>());
  const auto* right =
      reinterpret_cast<const std::int8_t*>(weight.codes.view().data<std::uint8_t>());
  std::vector<double> y;
  for (Dim row = 0; row < rows; ++row) {
    for (Dim column = 0; column < M; ++column) {
      std::int32_t sum = 0;
      for (Dim k = 0; k < K; ++k) sum += left[row * K + k] * right[column * K + k];
      volatile float value = static_cast<float>(sum) * x.scales.view().data<float>()[row];
      value = value * weight.scales.view().data<float>()[column];
      if (bias != nullptr) value = value + static_cast<float>(bias->view().data<T>()[column]);
      y.push_back(value);
    }
  }
  return y;
}

// Columns that are no multiple of anything, few and many rows, odd M; more than a block of both.
constexpr Sizes kSizes[] = {{1, 1, 1},    {1, 7, 33},     {2, 64, 64},   {3, 17, 100},
                            {5, 67, 191}, {8, 16, 128},   {11, 130, 65}, {12, 15, 256},
                            {33, 81, 70}, {70, 129, 330}, {129, 66, 64}, {1, 131, 777}};

TEST_F(QuantizedLinear, Int8ProductsAreExactOnEveryInstructionSet) {
  for (const auto& [rows, M, K] : kSizes) {
    const Tensor x = random_tensor(DType::f32, {rows, K}, 1);
    const Tensor bias = random_tensor(DType::f32, {M}, 3);
    const StoredMatrix weight =
        quantized({WeightFormat::int8, 0}, random_tensor(DType::f32, {M, K}, 2));
    const StoredMatrix codes = quantized({WeightFormat::int8, 0}, x);
    for (const cpu::InstructionSet set : cpu::kInstructionSets) {
      if (!cpu::has(set)) continue;
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(M) + " x " + std::to_string(K) +
                   ", instruction set " + std::to_string(static_cast<int>(set)));
      Tensor y = poisoned(DType::f32, {rows, M});
      cpu::int8_linear(ctx, set, {x.view(), weight.view(), bias.view(), y.view()});
      EXPECT_EQ(to_doubles(y.view()), by_definition<float>(codes, weight, &bias));
      cpu::int8_linear(ctx, set, {x.view(), weight.view(), {}, y.view()});
      EXPECT_EQ(to_doubles(y.view()), by_definition<float>(codes, weight, nullptr));
    }
  }
}

TEST_F(QuantizedLinear, TheLargestSumsAreExact) {
  // All codes 127 and -127: the largest sums, and the pairs that saturate in 16 bits if added
  // wrong.
  for (const Dim rows : {1, 40}) {
    for (const float sign : {1.0F, -1.0F}) {
      const Dim K = 4096;
      const Tensor x = filled_tensor(DType::f32, {rows, K}, sign);
      const StoredMatrix weight =
          quantized({WeightFormat::int8, 0}, filled_tensor(DType::f32, {5, K}, -1));
      const StoredMatrix codes = quantized({WeightFormat::int8, 0}, x);
      Context large(Device::cpu, std::size_t{64} << 20U);
      for (const cpu::InstructionSet set : cpu::kInstructionSets) {
        if (!cpu::has(set)) continue;
        Tensor y = poisoned(DType::f32, {rows, 5});
        cpu::int8_linear(large, set, {x.view(), weight.view(), {}, y.view()});
        EXPECT_EQ(to_doubles(y.view()), by_definition<float>(codes, weight, nullptr))
            << static_cast<int>(set);
      }
    }
  }
}

TEST_F(QuantizedLinear, ActivationsAreRoundedAsWeightsAre) {
  // Rows whose quotients lie on and beside the middle of two codes, tiny and huge rows, zeros.
  const Dim K = 2 * 126 * 3 + 4;
  std::vector<double> values;
  for (const double scale : {1.0, 0.37, 1e-39, 3e-44, 1e36, 0.0}) {
    const std::size_t begin = values.size();
    values.push_back(127 * scale);
    for (int code = -126; code < 126; ++code) {
      const auto middle = static_cast<float>((code + 0.5) * scale);
      for (const float value :
           {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e38F)}) {
        values.push_back(scale == 0 ? 0.0 : value);
      }
    }
    values.resize(begin + static_cast<std::size_t>(K), 0.0);
  }
  const Tensor x = tensor_of(DType::f32, {6, K}, values);
  const StoredMatrix codes = quantized({WeightFormat::int8, 0}, x);
  Tensor one_hot = filled_tensor(DType::f32, {K, K}, 0);
  for (Dim k = 0; k < K; ++k) one_hot.view().data<float>()[k * K + k] = 127;
  const StoredMatrix weight = quantized({WeightFormat::int8, 0}, one_hot);
  Tensor y = poisoned(DType::f32, {6, K});

  quantized_linear_forward(ctx, x.view(), weight.view(), {}, ActivationFormat::dynamic_int8,
                           y.view());

  EXPECT_EQ(to_doubles(y.view()), by_definition<float>(codes, weight, nullptr));
}

TEST_F(QuantizedLinear, DoublesGiveTheNumbersOfFloats) {
  const Tensor x = random_tensor(DType::f32, {3, 5, 70}, 1);
  const Tensor bias = random_tensor(DType::f32, {23}, 3);
  const StoredMatrix weight =
      quantized({WeightFormat::int8, 0}, random_tensor(DType::f32, {23, 70}, 2));
  Tensor single = poisoned(DType::f32, {3, 5, 23});
  Tensor twice = poisoned(DType::f64, {3, 5, 23});

  quantized_linear_forward(ctx, x.view(), weight.view(), bias.view(),
                           ActivationFormat::dynamic_int8, single.view());
  quantized_linear_forward(ctx, converted(x.view(), DType::f64).view(), weight.view(),
                           converted(bias.view(), DType::f64).view(),
                           ActivationFormat::dynamic_int8, twice.view());

  EXPECT_EQ(to_doubles(single.view()), to_doubles(twice.view()));
}

TEST_F(QuantizedLinear, WidenedWeightsMatchDequantizedOnesInDouble) {
  for (const GroupedFormat& format : kGroupedFormats) {
    for (const auto& [rows, M, K] : {Sizes{1, 7, 64},
                                     {2, 5, 192},
                                     {3, 66, 128},
                                     {4, 8, 64},
                                     {7, 33, 320},
                                     {8, 12, 128},
                                     {9, 31, 192},
                                     {65, 1030, 640}}) {
      SCOPED_TRACE(std::string(name_of(format.format)) + " of " + std::to_string(format.group) +
                   ", " + std::to_string(rows) + " x " + std::to_string(M) + " x " +
                   std::to_string(K));
      const Tensor x = random_tensor(DType::f32, {rows, K}, 1);
      const Tensor bias = random_tensor(DType::f32, {M}, 3);
      const StoredMatrix weight = quantized(format, random_tensor(DType::f32, {M, K}, 2));
      Tensor wide = poisoned(DType::f64, {M, K});
      dequantize(ctx, weight.view(), wide.view());
      const Tensor xx = converted(x.view(), DType::f64);
      const Tensor bb = converted(bias.view(), DType::f64);
      for (const bool has_bias : {true, false}) {
        Tensor oracle = poisoned(DType::f64, {rows, M});
        linear_forward(ctx, xx.view(), wide.view(), has_bias ? CView(bb.view()) : CView(),
                       oracle.view());
        Tensor twice = poisoned(DType::f64, {rows, M});
        quantized_linear_forward(ctx, xx.view(), weight.view(),
                                 has_bias ? CView(bb.view()) : CView(), ActivationFormat::none,
                                 twice.view());
        expect_close(twice.view(), oracle.view(), "f64");
        for (const auto set : {cpu::InstructionSet::portable, cpu::best_instruction_set()}) {
          Tensor y = poisoned(DType::f32, {rows, M});
          cpu::widened_linear(
              ctx, set,
              {x.view(), weight.view(), has_bias ? CView(bias.view()) : CView(), y.view()});
          expect_matches_oracle(y.view(), oracle.view(), "f32");
        }
      }
    }
  }
}

TEST_F(QuantizedLinear, ThreadsDoNotChangeBits) {
  const int threads = omp_get_max_threads();
  for (const Dim rows : {1, 3, 40}) {
    const Tensor x = random_tensor(DType::f32, {rows, 192}, 1);
    for (const GroupedFormat& format : kGroupedFormats) {
      const StoredMatrix weight = quantized(format, random_tensor(DType::f32, {333, 192}, 2));
      for (const auto activations : {ActivationFormat::none, ActivationFormat::dynamic_int8}) {
        const bool is_int8 = format.format == WeightFormat::int8;
        if (activations == ActivationFormat::dynamic_int8 ? !is_int8 : rows > 8) continue;
        std::vector<Tensor> y;
        for (const int count : {1, 3}) {
          omp_set_num_threads(count);
          Context some(Device::cpu, kWorkspaceBytes);
          y.push_back(poisoned(DType::f32, {rows, 333}));
          quantized_linear_forward(some, x.view(), weight.view(), {}, activations, y.back().view());
        }
        EXPECT_TRUE(same_bits(y[0].view(), y[1].view())) << rows << name_of(format.format);
      }
    }
  }
  omp_set_num_threads(threads);
}

TEST_F(QuantizedLinear, EmptySizesAreLegal) {
  const Tensor bias = tensor_of(DType::f32, {2}, {3, 4});
  for (const auto activations : {ActivationFormat::none, ActivationFormat::dynamic_int8}) {
    const StoredMatrix narrow =
        quantized({WeightFormat::int8, 0}, filled_tensor(DType::f32, {2, 0}, 0));
    const Tensor x = filled_tensor(DType::f32, {1, 0}, 0);
    Tensor y = poisoned(DType::f32, {1, 2});
    quantized_linear_forward(ctx, x.view(), narrow.view(), bias.view(), activations, y.view());
    expect_values(y.view(), {3, 4});

    const StoredMatrix weight =
        quantized({WeightFormat::int8, 0}, filled_tensor(DType::f32, {2, 5}, 1));
    const Tensor no_rows = filled_tensor(DType::f32, {0, 5}, 0);
    Tensor nothing = filled_tensor(DType::f32, {0, 2}, 0);
    quantized_linear_forward(ctx, no_rows.view(), weight.view(), bias.view(), activations,
                             nothing.view());
  }
}

TEST_F(QuantizedLinear, WrongOperandsAreNamed) {
  const Tensor x = filled_tensor(DType::f32, {2, 64}, 1);
  const Tensor bias = filled_tensor(DType::f32, {5}, 1);
  Tensor y = filled_tensor(DType::f32, {2, 4}, 1);
  const StoredMatrix eight =
      quantized({WeightFormat::int8, 0}, filled_tensor(DType::f32, {4, 64}, 1));
  const StoredMatrix four =
      quantized({WeightFormat::int4, 32}, filled_tensor(DType::f32, {4, 64}, 1));
  const auto refuse = [&](const std::string& argument, CView left, const StoredMatrix& weight,
                          CView added, ActivationFormat activations, View out) {
    expect_error_naming(argument, [&] {
      quantized_linear_forward(ctx, left, weight.view(), added, activations, out);
    });
  };
  refuse("int8 activations need int8 weights", x.view(), four, {}, ActivationFormat::dynamic_int8,
         y.view());
  refuse("quantized_linear_forward x", y.view(), eight, {}, ActivationFormat::none, y.view());
  refuse("quantized_linear_forward bias", x.view(), eight, bias.view(), ActivationFormat::none,
         y.view());
  refuse("quantized_linear_forward y", x.view(), eight, {}, ActivationFormat::none,
         y.view().reshaped({4, 2}));
  const Tensor long_row = filled_tensor(DType::f32, {1, kMostExactK + 1}, 1);
  const StoredMatrix long_weight = quantized({WeightFormat::int8, 0}, long_row);
  refuse("too long for exact sums", long_row.view(), long_weight, {},
         ActivationFormat::dynamic_int8, y.view().slice(0, 1));
  const Tensor half = filled_tensor(DType::f16, {2, 64}, 1);
  Tensor half_y = filled_tensor(DType::f16, {2, 4}, 1);
  for (const auto activations : {ActivationFormat::none, ActivationFormat::dynamic_int8}) {
    refuse("CPU ranks compute in f32 or f64", half.view(), eight, {}, activations, half_y.view());
  }
  StoredMatrix broken = quantized({WeightFormat::int8, 0}, filled_tensor(DType::f32, {4, 64}, 1));
  broken.matrix.scales = {};
  refuse("quantized_linear_forward weight scales", x.view(), broken, {}, ActivationFormat::none,
         y.view());
}

}  // namespace
}  // namespace hyperslab::ops
