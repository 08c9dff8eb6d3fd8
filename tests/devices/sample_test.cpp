// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/sample.hpp"

#include <limits>

#include "ops/sample_case.hpp"
#include "problem.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Dim kMostOnCpu = 5000;  // it sorts more of them for seconds

class Sample : public DevicesTest {};

/// Tokens from the logits, against those that the CPU has in f32.
void expect_match(const Tensor& logits, Dim V, const std::vector<TokenChoice>& choices,
                  const std::string& what) {
  const Dim rows = logits.view().shape()[0];
  const Problem::Call call = [V](Context& ctx, const Views& v) {
    sample(ctx, v[0], V, v[1], v[2]);
  };
  const auto problem_of = [&](DType dtype) {
    Problem problem(dtype);
    problem.fixed(converted(logits.view(), dtype))
        .fixed(bytes_of_choices(choices))
        .fixed_output(filled_tensor(DType::i32, {rows}, -7));
    return problem;
  };
  Problem problem = problem_of(logits.view().dtype());
  if (V > kMostOnCpu) problem.only_on(Device::cuda);
  const auto of_cpu = problem_of(DType::f32).on(Device::cpu, call);
  const auto* expected = of_cpu[2].view().data<std::int32_t>();
  const auto check = [&](const Results& results) {
    const auto* found = results[2].view().data<std::int32_t>();
    for (Dim row = 0; row < rows; ++row) {
      const TokenChoice& choice = choices[static_cast<std::size_t>(row)];
      ASSERT_EQ(found[row], expected[row])
          << what << ", row " << row << ", temperature " << choice.temperature << ", top k "
          << choice.top_k << ", top p " << choice.top_p << ", min p " << choice.min_p;
    }
  };
  problem.on_each(call, check, {0});
}

/// Logits of bf16 are often equal, so that cuts go through equal ones.
TEST_F(Sample, ChoosesAsTheCpuDoesInF32) {
  const std::vector<TokenChoice> choices = token_choices(12);
  for (const DType dtype : compute_types()) {
    for (const auto& [V, columns] :
         {std::pair<Dim, Dim>{1, 8}, {50, 64}, {999, 1003}, {50257, 50304}, {128256, 128256}}) {
      if (V > kMostOnCpu && cuda_device_count() == 0) continue;
      const Tensor logits = random_tensor(dtype, {std::ssize(choices), columns}, 1, 3);
      expect_match(logits, V, choices,
                   std::to_string(V) + " logits in " + std::string(name_of(dtype)));
    }
  }
}

TEST_F(Sample, EqualLogitsAreCutAndDrawnInTheirOrder) {
  const std::vector<TokenChoice> choices = token_choices(6);
  expect_match(filled_tensor(DType::bf16, {std::ssize(choices), 4104}, -2.5), 4100, choices,
               "equal logits");
}

TEST_F(Sample, LogitsThatAreNoNumbersGiveNoToken) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {
      0, std::numeric_limits<double>::quiet_NaN(), kInfinity, 0, -kInfinity, -kInfinity, -kInfinity,
      1};
  expect_match(tensor_of(DType::f32, {4, 2}, values), 2, std::vector<TokenChoice>(4), "no numbers");
}

}  // namespace
}  // namespace hyperslab::ops
