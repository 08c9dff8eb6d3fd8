// SPDX-License-Identifier: Apache-2.0
// Ops of one new token a sample, which a GPU does in fewer kernels than the CPU has ops.
#include <limits>

#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/argmax.hpp"
#include "hyperslab/ops/attention.hpp"
#include "hyperslab/ops/columns.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/quantized.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuGeneration : public GpuTest {};

struct Size {
  Dim M, K;
};

/// One tile, a part of one, several for a block; a part of a piece of columns, many pieces.
const std::vector<Size> kSizes = {{16, 8}, {40, 520}, {4224, 128}, {48, 14336}, {4400, 1032}};

TEST_F(GpuGeneration, FewRowsByPlainWeights) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [M, K] : kSizes) {
      for (const Dim rows : {1, 3, 8}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {rows, K}, 1, 1 / std::sqrt(double(K))))
            .input(random_tensor(dtype, {M - 3, K}, 2))
            .input(random_tensor(dtype, {M - 3}, 3))
            .output(dtype, {rows, M - 3});
        problem.expect_match(
            [](Context& ctx, const Problem::Views& v) {
              linear_forward(ctx, v[0], v[1], v[2], v[3]);
            },
            "linear_forward of " + std::to_string(rows) + " rows by " + std::to_string(M - 3));
      }
    }
  }
}

/// What is in the room for gate and up afterwards is not compared.
TEST_F(GpuGeneration, GatedProductsOfFewRows) {
  for (const DType dtype : kGpuTypes) {
    for (const auto& [M, K] : kSizes) {
      for (const Dim rows : {1, 3, 8, 9}) {
        for (const Activation activation :
             {Activation::swiglu, Activation::geglu, Activation::geglu_tanh}) {
          Problem problem(dtype);
          problem.input(random_tensor(dtype, {rows, K}, 1, 1 / std::sqrt(double(K))))
              .input(random_tensor(dtype, {M, K}, 2))
              .input(random_tensor(dtype, {M}, 3))
              .input(poisoned(dtype, {rows, M}))
              .output(dtype, {rows, M / 2});
          // Both factors are rounded before their product is.
          problem.expect_match(
              [=](Context& ctx, const Problem::Views& v) {
                linear_gated_forward(ctx, v[0], v[1], v[2], activation, v[3], v[4]);
              },
              "linear_gated_forward of " + std::to_string(rows) + " rows by " + std::to_string(M),
              3);
        }
      }
    }
  }
}

/// A quantized matrix as the operands codes, scales, block scales.
std::vector<Tensor> quantized(WeightFormat format, Dim group, Size size) {
  std::vector<Tensor> out;
  out.emplace_back(
      Device::cpu, DType::u8,
      format == WeightFormat::int8 ? Shape{size.M, size.K} : Shape{size.M, size.K / 2});
  out.emplace_back(Device::cpu, format == WeightFormat::int8 ? DType::f32 : DType::f16,
                   format == WeightFormat::int8 ? Shape{size.M} : Shape{size.M, size.K / group});
  Context cpu(Device::cpu);
  const Tensor weight = random_tensor(DType::f32, {size.M, size.K}, 2);
  quantize(cpu, weight.view(), {format, group, {size.M, size.K}, out[0].view(), out[1].view(), {}});
  return out;
}

TEST_F(GpuGeneration, GatedProductsOfOneRowByQuantizedWeights) {
  struct Format {
    WeightFormat format;
    Dim group;  // 0: a row
  };
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [format, group_or_row] : std::vector<Format>{
             {WeightFormat::int8, 0}, {WeightFormat::int4, 64}, {WeightFormat::int4, 128}}) {
      for (const Size& size :
           std::vector<Size>{{32, 512}, {4400, 1024}, {48, 14336}, {24, 20480}}) {
        const Dim group = group_or_row == 0 ? size.K : group_or_row;
        auto weight = quantized(format, group, size);
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {1, size.K}, 1, 1 / std::sqrt(double(size.K))))
            .fixed(std::move(weight[0]))
            .fixed(std::move(weight[1]))
            .input(random_tensor(dtype, {size.M}, 3))
            .input(poisoned(dtype, {1, size.M}))
            .output(dtype, {1, size.M / 2});
        problem.expect_match(
            [=](Context& ctx, const Problem::Views& v) {
              const CQuantizedMatrix matrix = {format, group, {size.M, size.K}, v[1], v[2], {}};
              quantized_linear_gated_forward(ctx, v[0], matrix, v[3], ActivationFormat::none,
                                             Activation::swiglu, v[4], v[5]);
            },
            "quantized_linear_gated_forward by " + std::to_string(size.M), 3);
      }
    }
  }
}

TEST_F(GpuGeneration, RopeAndAttentionOnACache) {
  struct Case {
    Dim B, tokens, past;
    HeadLayout layout;
    Dim half;  // 0: no rope
    Dim window = 0;
    double softcap = 0;
    Dim room = 3;  // rows of the cache that stay free, which decide on the number of splits
  };
  for (const DType dtype : kGpuTypes) {
    for (const auto& [B, tokens, past, layout, half, window, softcap, room] :
         std::vector<Case>{{1, 1, 0, {2, 2, 64}, 32},
                           {2, 1, 6, {4, 2, 64}, 32},
                           {1, 1, 63, {4, 1, 128}, 64},
                           {1, 1, 64, {8, 2, 128}, 64},
                           {2, 1, 3000, {8, 2, 64}, 16},
                           {1, 1, 700, {2, 1, 128}, 0},
                           {1, 1, 511, {4, 4, 32}, 16},
                           {1, 1, 900, {2, 1, 256}, 128},
                           {2, 1, 3000, {8, 2, 64}, 32, 700},
                           {1, 1, 40, {8, 2, 64}, 32, 3},
                           {1, 1, 300, {4, 2, 64}, 32, 0, 0.8},
                           // Splits without keys; the newest key alone in a split; 3, 5, 7 splits.
                           {1, 1, 10, {4, 2, 64}, 32, 0, 0, 3000},
                           {1, 1, 64, {4, 2, 64}, 32, 0, 0, 3000},
                           {1, 1, 128, {4, 2, 64}, 32, 0, 0, 3000},
                           {1, 1, 190, {4, 2, 64}, 32},
                           {1, 1, 330, {4, 2, 64}, 32},
                           {1, 1, 450, {4, 2, 128}, 64},
                           {1, 1, 2000, {4, 2, 64}, 32, 65},
                           {1, 1, 20, {3, 3, 80}, 40},
                           {2, 5, 40, {4, 2, 64}, 32}}) {
      const Dim rows = past + tokens + room;
      const Shape cache = {B, rows, layout.kv_heads * layout.head_width};
      Problem problem(dtype);
      problem.input(random_tensor(dtype, {B, tokens, layout.packed_width()}, 1))
          .in_out(random_tensor(dtype, cache, 2))
          .in_out(random_tensor(dtype, cache, 3))
          .output(dtype, {B, tokens, layout.heads * layout.head_width})
          .fixed(int_tensor({1}, {static_cast<std::int32_t>(past)}))
          .input(Tensor(Device::cpu, DType::f32, {rows, std::max<Dim>(1, half)}))
          .input(Tensor(Device::cpu, DType::f32, {rows, std::max<Dim>(1, half)}));
      problem.expect_match(
          [=, layout = layout, past = past, half = half, window = window, softcap = softcap](
              Context& ctx, const Problem::Views& v) {
            const TokenPosition here =
                ctx.device() == Device::cuda ? TokenPosition(past, v[4]) : TokenPosition(past);
            RotaryTables tables;
            if (half > 0) {
              rope_table(ctx, rope_frequencies(1e4, half), 1, v[5], v[6]);
              tables = {v[5], v[6]};
            }
            AttentionScores scores(AttentionMask{AttentionMask::Kind::causal, window});
            scores.softcap = softcap;
            attention_cached_forward(ctx, layout, scores, tables, v[0], {v[1], v[2], here}, v[3]);
          },
          "attention_cached_forward after " + std::to_string(past));
    }
  }
}

TEST_F(GpuGeneration, ArgmaxIsThatOfTheCpu) {
  for (const DType dtype : kGpuTypes) {
    for (const auto& [V, columns] :
         std::vector<std::pair<Dim, Dim>>{{1, 1}, {7, 9}, {1000, 1024}, {50257, 50304}}) {
      std::vector<double> values = to_doubles(random_tensor(DType::f32, {4, columns}, 1).view());
      const auto at = [&, columns = columns](Dim row, Dim column) -> double& {
        return values[static_cast<std::size_t>(row * columns + column)];
      };
      at(1, V / 2) = 50;  // the same twice: the first counts
      at(1, V - 1) = 50;
      at(2, V - 1) = std::nan("");
      for (Dim i = 0; i < V; ++i) at(3, i) = -std::numeric_limits<double>::infinity();
      at(0, V / 3) = 40;
      if (V < columns) at(0, V) = 100;  // beyond the vocabulary
      Problem problem(dtype);
      problem.input(tensor_of(dtype, {4, columns}, values))
          .fixed_output(int_tensor({4}, {7, 7, 7, 7}));
      const auto call = [=, V = V](Context& ctx, const Problem::Views& v) {
        argmax(ctx, v[0], V, v[1]);
      };
      for (const Dim offset : {0, 1}) {
        const auto found = problem.on_gpu(call, offset);
        EXPECT_EQ(to_doubles(found[1].view()),
                  (std::vector<double>{double(V / 3), double(V / 2), -1, -1}))
            << V;
      }
    }
  }
}

TEST_F(GpuGeneration, ColumnsAreCopied) {
  for (const DType dtype : kGpuTypes) {
    Problem problem(dtype);
    problem.input(random_tensor(dtype, {2, 5, 70}, 1))
        .output(dtype, {2, 5, 32})
        .in_out(random_tensor(dtype, {2, 5, 70}, 2));
    problem.expect_match(
        [](Context& ctx, const Problem::Views& v) {
          take_columns(ctx, v[0], 3, v[1]);
          put_columns(ctx, v[1], 38, v[2]);
        },
        "columns");
  }
}

}  // namespace
}  // namespace hyperslab::ops
