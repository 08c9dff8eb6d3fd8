// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/fp8.hpp"

#include <cmath>
#include <limits>

#include "gpu_test.hpp"
#include "hyperslab/core/round_up.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuFp8 : public GpuTest {};

const std::vector<Fp8Format> kFormats = {Fp8Format::e4m3, Fp8Format::e5m2};
const std::vector<Fp8Scaling> kScalings = {Fp8Scaling::tensor, Fp8Scaling::row, Fp8Scaling::group,
                                           Fp8Scaling::block};

const char* name_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::tensor: return "tensor";
    case Fp8Scaling::row: return "row";
    case Fp8Scaling::group: return "group";
    case Fp8Scaling::block: return "block";
  }
  return "";
}

Dim padded(Dim rows) { return round_up(rows, kFp8Multiple); }

/// FP8 values and scales that quantization writes, straight and transposed.
struct Arrays {
  Tensor values, scales, transposed, transposed_scales;
};

enum class Ways : std::uint8_t { straight, transposed, both };

/// `given`: first the amaxes are found of the matrix, then taken for what is asked for.
Arrays quantized(Device device, const Tensor& x, Fp8Format format, Fp8Scaling scaling, Ways ways,
                 bool given = false) {
  Context ctx(device);
  const Dim rows = x.view().shape()[0];
  const Dim columns = x.view().shape()[1];
  const auto matrix = [&](Tensor& values, Tensor& scales, Tensor& amax, Dim M, Dim K) {
    const Shape shape = fp8_scales_shape(scaling, {M, K});
    values = Tensor(device, DType::u8, {M, K});
    scales = Tensor(device, DType::f32, shape);
    amax = Tensor(device, DType::f32, shape);
    return Fp8Matrix{format, scaling, values.view(), amax.view(), scales.view()};
  };
  Tensor here(device, x.view().dtype(), x.view().shape());
  copy(ctx, x.view(), here.view());
  Arrays found;
  Tensor amax;
  Tensor other_amax;
  Fp8Matrix straight = matrix(found.values, found.scales, amax, fp8_rows(scaling, rows), columns);
  Fp8Matrix transposed =
      matrix(found.transposed, found.transposed_scales, other_amax, columns, padded(rows));
  const Fp8Matrix whole = straight;
  if (ways == Ways::transposed) straight = {};
  if (ways == Ways::straight) transposed = {};
  if (given) {
    fp8_quantize(ctx, here.view(), whole, {});
    transposed.amax = whole.amax;
  }
  fp8_quantize(ctx, here.view(), straight, transposed, given ? Fp8Amax::given : Fp8Amax::found);
  synchronize(ctx);
  const auto to_cpu = [&](Tensor& from) {
    Tensor out(Device::cpu, from.view().dtype(), from.view().shape());
    copy(ctx, from.view(), out.view());
    synchronize(ctx);
    from = std::move(out);
  };
  for (Tensor* each : {&found.values, &found.scales, &found.transposed, &found.transposed_scales}) {
    to_cpu(*each);
  }
  return found;
}

void expect_same(const Tensor& a, const Tensor& b, const char* what) {
  EXPECT_TRUE(same_bits(a.view(), b.view())) << what;
}

TEST_F(GpuFp8, ValuesHaveTheBitsOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // Parts of a tile, several tiles, rows that the transpose pads.
    for (const Shape& shape :
         {Shape{1, 16}, Shape{8, 128}, Shape{127, 112}, Shape{129, 144}, Shape{130, 272},
          Shape{257, 4096}, Shape{300, 304}, Shape{1000, 144}, Shape{64, 2048}}) {
      const Tensor x = random_tensor(dtype, shape, 7, 0.37);
      for (const Fp8Format format : kFormats) {
        for (const Fp8Scaling scaling : kScalings) {
          SCOPED_TRACE(shape.str() + " by " + name_of(scaling) +
                       (format == Fp8Format::e5m2 ? " e5m2 " : " e4m3 ") +
                       std::string(hyperslab::name_of(dtype)));
          for (const Ways ways : {Ways::both, Ways::straight, Ways::transposed}) {
            const Arrays cpu = quantized(Device::cpu, x, format, scaling, ways);
            const Arrays gpu = quantized(Device::cuda, x, format, scaling, ways);
            if (ways != Ways::transposed) {
              expect_same(gpu.values, cpu.values, "values");
              expect_same(gpu.scales, cpu.scales, "scales");
            }
            if (ways != Ways::straight) {
              expect_same(gpu.transposed, cpu.transposed, "transposed values");
              expect_same(gpu.transposed_scales, cpu.transposed_scales, "transposed scales");
            }
          }
        }
      }
    }
  }
}

TEST_F(GpuFp8, AmaxesThatAreGivenGiveTheSameBits) {
  const Tensor x = random_tensor(DType::bf16, {130, 272}, 7, 0.37);
  for (const Fp8Format format : kFormats) {
    for (const Ways ways : {Ways::both, Ways::straight, Ways::transposed}) {
      const Arrays found = quantized(Device::cuda, x, format, Fp8Scaling::tensor, ways);
      const Arrays given = quantized(Device::cuda, x, format, Fp8Scaling::tensor, ways, true);
      if (ways != Ways::transposed) expect_same(given.values, found.values, "values");
      if (ways == Ways::straight) continue;
      expect_same(given.transposed, found.transposed, "transposed values");
      expect_same(given.transposed_scales, found.transposed_scales, "transposed scales");
    }
  }
}

TEST_F(GpuFp8, PartsOfQuantizeHaveTheBitsOfTheWhole) {
  Context ctx(Device::cuda);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{1, 16}, Shape{127, 112}, Shape{300, 304}, Shape{1000, 4096}}) {
      SCOPED_TRACE(shape.str());
      const Tensor x = random_tensor(dtype, shape, 7, 0.37);
      const Arrays whole =
          quantized(Device::cuda, x, Fp8Format::e4m3, Fp8Scaling::tensor, Ways::both);
      Tensor here(Device::cuda, dtype, shape);
      copy(ctx, x.view(), here.view());
      Tensor amax(Device::cuda, DType::f32, {1});
      Tensor scales(Device::cuda, DType::f32, {1});
      fp8_amax(ctx, here.view().flat(), amax.view());
      fp8_scales(ctx, Fp8Format::e4m3, amax.view(), scales.view());
      Tensor values(Device::cuda, DType::u8, shape);
      copy(ctx, whole.values.view(), values.view());
      Tensor transposed(Device::cuda, DType::u8, whole.transposed.view().shape());
      fp8_transpose(ctx, values.view(), transposed.view());
      Tensor found_scales(Device::cpu, DType::f32, {1});
      Tensor found(Device::cpu, DType::u8, transposed.view().shape());
      copy(ctx, scales.view(), found_scales.view());
      copy(ctx, transposed.view(), found.view());
      synchronize(ctx);
      expect_same(found_scales, whole.scales, "scales");
      expect_same(found, whole.transposed, "transposed values");
    }
  }
}

/// Zeros have the least scale there is, and what is far apart its own.
TEST_F(GpuFp8, GroupsOfZerosAndOfManyMagnitudesHaveTheBitsOfTheCpu) {
  Tensor x = random_tensor(DType::bf16, {300, 304}, 8);
  for (Dim i = 0; i < x.view().numel(); ++i) {
    const float factor = i / 1000 % 4 == 0 ? 0 : std::ldexp(1.0F, static_cast<int>(i / 777 % 60));
    bf16& value = x.view().data<bf16>()[i];
    value = to_bf16(to_float(value) * factor);
  }
  for (const Fp8Scaling scaling : {Fp8Scaling::group, Fp8Scaling::block}) {
    const Arrays cpu = quantized(Device::cpu, x, Fp8Format::e4m3, scaling, Ways::both);
    const Arrays gpu = quantized(Device::cuda, x, Fp8Format::e4m3, scaling, Ways::both);
    expect_same(gpu.values, cpu.values, name_of(scaling));
    expect_same(gpu.scales, cpu.scales, name_of(scaling));
    expect_same(gpu.transposed, cpu.transposed, name_of(scaling));
    expect_same(gpu.transposed_scales, cpu.transposed_scales, name_of(scaling));
  }
}

TEST_F(GpuFp8, WhatIsNotFiniteStaysInItsGroup) {
  Tensor x = filled_tensor(DType::bf16, {256, 256}, 1);
  x.view().data<bf16>()[5] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  for (const Fp8Scaling scaling : {Fp8Scaling::group, Fp8Scaling::block}) {
    const Arrays gpu = quantized(Device::cuda, x, Fp8Format::e4m3, scaling, Ways::both);
    const auto* const values = gpu.values.view().data<std::uint8_t>();
    const auto* const turned = gpu.transposed.view().data<std::uint8_t>();
    for (const Dim inside : {0, 5, 127}) EXPECT_EQ(values[inside] & 0x7F, 0x7F);
    for (const Dim inside : {0, 127}) EXPECT_EQ(turned[5 * 256 + inside] & 0x7F, 0x7F);
    EXPECT_EQ(values[256] & 0x7F, scaling == Fp8Scaling::block ? 0x7F : 0x7E);
    EXPECT_EQ(values[128], 0x7E);
    EXPECT_EQ(values[128 * 256], 0x7E);
    EXPECT_EQ(turned[128], 0x7E);
    EXPECT_EQ(turned[128 * 256], 0x7E);
    EXPECT_TRUE(std::isnan(gpu.scales.view().data<float>()[0]));
    EXPECT_TRUE(std::isfinite(gpu.scales.view().data<float>()[1]));
  }
}

TEST_F(GpuFp8, WhatIsNotFiniteBecomesNan) {
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor x = filled_tensor(DType::bf16, {32, 32}, 1);
    x.view().data<bf16>()[5] = to_bf16(static_cast<float>(value));
    const Arrays gpu = quantized(Device::cuda, x, Fp8Format::e4m3, Fp8Scaling::row, Ways::straight);
    EXPECT_EQ(gpu.values.view().data<std::uint8_t>()[5] & 0x7F, 0x7F);
    EXPECT_EQ(gpu.values.view().data<std::uint8_t>()[32], 0x7E);
  }
}

struct Size {
  Dim M, N, K;
};
struct Pair {
  Fp8Scaling a, b;
};
constexpr Pair kPairs[] = {{Fp8Scaling::tensor, Fp8Scaling::tensor},
                           {Fp8Scaling::row, Fp8Scaling::row},
                           {Fp8Scaling::group, Fp8Scaling::group},
                           {Fp8Scaling::group, Fp8Scaling::block},
                           {Fp8Scaling::block, Fp8Scaling::group}};

TEST_F(GpuFp8, ProductsMatchTheOracle) {
  for (const Size& size :
       {Size{64, 64, 64}, Size{256, 512, 1024}, Size{1000, 48, 272}, Size{17, 4096, 128}}) {
    for (const auto& [a_scaling, b_scaling] : kPairs) {
      const Dim M = fp8_rows(a_scaling, size.M);
      for (const bool left_gradient : {false, true}) {
        for (const DType out : {DType::bf16, DType::f32}) {
          for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
            const Fp8Format left = left_gradient ? Fp8Format::e5m2 : Fp8Format::e4m3;
            const Tensor x = random_tensor(DType::bf16, {size.M, size.K}, 1);
            const Tensor w = random_tensor(DType::bf16, {size.N, size.K}, 2, 0.02);
            const Tensor bias = random_tensor(DType::bf16, {size.N}, 3);
            const bool adds_bias = out == DType::bf16 && accumulate == Accumulate::no;
            const auto product = [&](Device device) {
              Context ctx(device);
              const auto moved = [&](const Tensor& from) {
                Tensor to(device, from.view().dtype(), from.view().shape());
                copy(ctx, from.view(), to.view());
                return to;
              };
              const Arrays a = quantized(Device::cpu, x, left, a_scaling, Ways::straight);
              const Arrays b =
                  quantized(Device::cpu, w, Fp8Format::e4m3, b_scaling, Ways::straight);
              const Tensor operands[] = {moved(a.values), moved(a.scales), moved(b.values),
                                         moved(b.scales), moved(bias)};
              Tensor c = moved(filled_tensor(out, {M, size.N}, 0.5));
              const auto matrix = [&](Fp8Format format, Fp8Scaling scaling, int at) {
                return CFp8Matrix{format, scaling, operands[at].view(), operands[at + 1].view(),
                                  operands[at + 1].view()};
              };
              fp8_matmul(ctx, matrix(left, a_scaling, 0), matrix(Fp8Format::e4m3, b_scaling, 2),
                         adds_bias ? CView(operands[4].view()) : CView(), Fp8Sums::exact,
                         accumulate, c.view());
              synchronize(ctx);
              Tensor host(Device::cpu, out, {M, size.N});
              copy(ctx, c.view(), host.view());
              synchronize(ctx);
              return host;
            };
            const Tensor expected = product(Device::cpu);
            const Tensor found = product(Device::cuda);
            // The tensor cores keep fewer bits of a sum than a float has.
            EXPECT_LE(relative_difference(found.view(), expected.view()),
                      out == DType::bf16 ? tolerance(DType::bf16) : 1e-3)
                << M << " x " << size.N << " x " << size.K << " by " << name_of(a_scaling)
                << " and " << name_of(b_scaling);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
