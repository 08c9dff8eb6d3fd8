// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/sample.hpp"

#include <limits>

#include "gpu_test.hpp"
#include "ops/sample_case.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuSample : public GpuTest {};

/// Tokens of both devices from the same logits, which the CPU has in f32.
void expect_match(const Tensor& logits, Dim V, const std::vector<TokenChoice>& choices,
                  const std::string& what) {
  const Dim rows = logits.view().shape()[0];
  const Problem::Call call = [V](Context& ctx, const Views& v) {
    sample(ctx, v[0], V, v[1], v[2]);
  };
  const auto problem_of = [&](DType dtype) {
    Problem problem(DType::f32);
    problem.fixed(tensor_of(dtype, logits.view().shape(), to_doubles(logits.view())))
        .fixed(bytes_of_choices(choices))
        .fixed_output(filled_tensor(DType::i32, {rows}, -7));
    return problem;
  };
  const auto of_gpu = problem_of(logits.view().dtype()).on_gpu(call);
  const auto of_cpu = problem_of(DType::f32).on_oracle(call);
  const auto* found = of_gpu[2].view().data<std::int32_t>();
  const auto* expected = of_cpu[2].view().data<std::int32_t>();
  for (Dim row = 0; row < rows; ++row) {
    const TokenChoice& choice = choices[static_cast<std::size_t>(row)];
    ASSERT_EQ(found[row], expected[row])
        << what << ", row " << row << ", temperature " << choice.temperature << ", top k "
        << choice.top_k << ", top p " << choice.top_p << ", min p " << choice.min_p;
  }
}

/// Logits of bf16 are often equal, so that cuts go through equal ones.
TEST_F(GpuSample, ChoosesAsTheCpuDoes) {
  const std::vector<TokenChoice> choices = token_choices(12);
  for (const DType dtype : kGpuTypes) {
    for (const auto& [V, columns] :
         {std::pair<Dim, Dim>{1, 8}, {50, 64}, {999, 1003}, {50257, 50304}, {128256, 128256}}) {
      const Tensor logits = random_tensor(dtype, {std::ssize(choices), columns}, 1, 3);
      expect_match(logits, V, choices,
                   std::to_string(V) + " logits in " + std::string(name_of(dtype)));
    }
  }
}

TEST_F(GpuSample, EqualLogitsAreCutAndDrawnInTheirOrder) {
  const std::vector<TokenChoice> choices = token_choices(6);
  expect_match(filled_tensor(DType::bf16, {std::ssize(choices), 4104}, -2.5), 4100, choices,
               "equal logits");
}

TEST_F(GpuSample, LogitsThatAreNoNumbersGiveNoToken) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {
      0, std::numeric_limits<double>::quiet_NaN(), kInfinity, 0, -kInfinity, -kInfinity, -kInfinity,
      1};
  expect_match(tensor_of(DType::f32, {4, 2}, values), 2, std::vector<TokenChoice>(4), "no numbers");
}

}  // namespace
}  // namespace hyperslab::ops
