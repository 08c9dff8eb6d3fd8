// SPDX-License-Identifier: Apache-2.0
// Products of operands stored in bf16: by AVX512_BF16 where the processor has it, and on f32
// copies.
#include <omp.h>

#include <algorithm>

#include "backend.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "ops_test.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

enum class Path : std::uint8_t { processor, copies };

/// The op as the processor multiplies, or as it runs where there is no AVX512_BF16.
template <auto cpu_op, class... Operands>
void call_on(Path path, Context& ctx, const Operands&... operands) {
  if (path == Path::processor) return cpu_op(ctx, operands...);
  cpu::WideOperands wide(ctx.threads());
  cpu_op(ctx, wide(operands)...);
  wide.round_results();
}

Tensor in_double(const Tensor& x) { return converted(x.view(), DType::f64); }

class Bf16Products : public OpsTest, public testing::WithParamInterface<Path> {
 protected:
  void SetUp() override {
    if (GetParam() == Path::processor && !cpu_multiplies_bf16()) {
      GTEST_SKIP() << "this processor has no AVX512_BF16";
    }
  }
};

struct Case {
  Dim M, N, K;
};

TEST_P(Bf16Products, MatchTheOracleAtAwkwardSizes) {
  // Beyond one tile, one block along K, one block of columns, and one block of kept sums.
  const std::array<Case, 12> sizes = {{{1, 1, 1},
                                       {1, 33, 17},
                                       {3, 5, 0},
                                       {17, 3, 33},
                                       {14, 32, 64},
                                       {15, 31, 65},
                                       {33, 257, 3},
                                       {257, 17, 31},
                                       {57, 70, 1025},
                                       {3, 1057, 513},
                                       {113, 64, 512},
                                       {2051, 9, 515}}};
  for (const auto& [M, N, K] : sizes) {
    for (const Trans trans_a : {Trans::no, Trans::yes}) {
      for (const Trans trans_b : {Trans::no, Trans::yes}) {
        const Tensor a = bf16_numbers(trans_a == Trans::no ? Shape{M, K} : Shape{K, M}, 1);
        const Tensor b = bf16_numbers(trans_b == Trans::no ? Shape{K, N} : Shape{N, K}, 2);
        for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
          const bool adds = accumulate == Accumulate::yes;
          const Tensor before = adds ? bf16_numbers({M, N}, 3) : poisoned(DType::bf16, {M, N});
          Tensor oracle = in_double(before);
          Tensor narrow = before.clone();
          Tensor single = converted(before.view(), DType::f32);

          matmul(ctx, in_double(a).view(), trans_a, in_double(b).view(), trans_b, accumulate,
                 oracle.view());
          call_on<cpu::matmul>(GetParam(), ctx, a.view(), trans_a, b.view(), trans_b, accumulate,
                               narrow.view());
          call_on<cpu::matmul>(GetParam(), ctx, a.view(), trans_a, b.view(), trans_b, accumulate,
                               single.view());

          SCOPED_TRACE(std::to_string(M) + " x " + std::to_string(N) + " x " + std::to_string(K) +
                       (adds ? ", added" : ""));
          expect_matches_oracle(narrow.view(), oracle.view(), "c in bf16");
          expect_matches_oracle(single.view(), oracle.view(), "c in f32");
        }
      }
    }
  }
}

TEST_P(Bf16Products, ColumnsAreScaledAndTheOthersStay) {
  const Tensor a = bf16_numbers({35, 50}, 1);
  const Tensor b = bf16_numbers({20, 60}, 2);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Tensor before = converted(bf16_numbers({35, 80}, 3).view(), dtype);
    Tensor c = before.clone();
    Tensor oracle = in_double(before);

    call_on<cpu::matmul_columns>(GetParam(), ctx, CColumns{a.view(), 7, 20},
                                 CColumns{b.view(), 3, 41}, 0.75F, Accumulate::yes,
                                 Columns{c.view(), 11, 41});
    matmul_columns(ctx, {in_double(a).view(), 7, 20}, {in_double(b).view(), 3, 41}, 0.75F,
                   Accumulate::yes, {oracle.view(), 11, 41});

    expect_matches_oracle(c.view(), oracle.view(), "c");
    const std::vector<double> found = to_doubles(c.view());
    const std::vector<double> was = to_doubles(before.view());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t column = i % 80;
      if (column < 11 || column >= 52) {
        ASSERT_EQ(found[i], was[i]) << i;
      }
    }
  }
}

TEST_P(Bf16Products, LinearWithItsBiasAndGradients) {
  const Tensor x = bf16_numbers({19, 530}, 1);
  const Tensor weight = bf16_numbers({45, 530}, 2);
  const Tensor bias = bf16_numbers({45}, 3);
  const Tensor dy = bf16_numbers({19, 45}, 4);
  const auto run = [&](DType dtype, Accumulate accumulate) {
    const auto in = [&](const Tensor& t) { return converted(t.view(), dtype); };
    const DType sums = dtype == DType::f64 ? DType::f64 : DType::f32;
    std::array results = {in(bf16_numbers({19, 45}, 5)), in(bf16_numbers({19, 530}, 6)),
                          converted(bf16_numbers({45, 530}, 7).view(), sums),
                          converted(bf16_numbers({45}, 8).view(), sums)};
    auto& [y, dx, dweight, dbias] = results;
    const Tensor in_x = in(x);
    const Tensor in_weight = in(weight);
    const Tensor in_bias = in(bias);
    const Tensor in_dy = in(dy);
    const Path path = dtype == DType::f64 ? Path::copies : GetParam();
    call_on<cpu::linear_forward>(path, ctx, in_x.view(), in_weight.view(), in_bias.view(),
                                 accumulate, y.view());
    call_on<cpu::linear_backward_input>(path, ctx, in_dy.view(), in_weight.view(), accumulate,
                                        dx.view());
    call_on<cpu::linear_backward_weight>(path, ctx, in_dy.view(), in_x.view(), accumulate,
                                         dweight.view(), dbias.view());
    return results;
  };
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    const auto found = run(DType::bf16, accumulate);
    const auto oracle = run(DType::f64, accumulate);

    constexpr std::array kNames = {"y", "dx", "dweight", "dbias"};
    for (std::size_t i = 0; i < found.size(); ++i) {
      expect_matches_oracle(found[i].view(), oracle[i].view(), kNames[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Bf16Products, testing::Values(Path::processor, Path::copies),
                         [](const auto& tested) {
                           return tested.param == Path::processor ? "processor" : "copies";
                         });

class DispatchedBf16Products : public OpsTest {};

/// Not so on copies: OpenBLAS cuts products as it has threads.
TEST_F(DispatchedBf16Products, BitsDoNotDependOnThreads) {
  if (!cpu_multiplies_bf16()) GTEST_SKIP() << "this processor has no AVX512_BF16";
  const Tensor a = bf16_numbers({301, 1100}, 1);
  const Tensor b = bf16_numbers({1100, 1130}, 2);
  const int most = omp_get_max_threads();
  for (const DType dtype : {DType::bf16, DType::f32}) {
    std::vector<Tensor> results;
    for (const int threads : {1, 2, 3}) {
      omp_set_num_threads(threads);
      Context some(Device::cpu, kWorkspaceBytes);
      results.push_back(poisoned(dtype, {301, 1130}));

      cpu::matmul(some, a.view(), Trans::no, b.view(), Trans::no, Accumulate::no,
                  results.back().view());

      ASSERT_EQ(some.threads(), threads);
      EXPECT_TRUE(same_bits(results.back().view(), results[0].view())) << threads;
    }
  }
  omp_set_num_threads(most);
}

}  // namespace
}  // namespace hyperslab::ops
