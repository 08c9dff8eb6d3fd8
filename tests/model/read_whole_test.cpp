// SPDX-License-Identifier: Apache-2.0
// Logits of some tokens of whole samples, against what an evaluation says of the same targets.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using test::small_model;
using test::small_stage;
using test::StageHarness;

constexpr Dim kB = 3;
constexpr Dim kT = 16;

class ReadWhole : public testing::Test {
 protected:
  /// The head's products have ten rows each, the last one eight.
  static StageOptions options() {
    StageOptions out = small_stage(kB, kT, false);
    out.generation = Generation::whole;
    out.logits_bytes = 10 * 101 * sizeof(float);
    return out;
  }
  static Tensor logits_of(StageHarness& run, const std::vector<Dim>& rows) {
    Tensor logits(Device::cpu, DType::f32,
                  {static_cast<Dim>(rows.size()), run.stage->results().logits_columns});
    run.stage->read_whole(*run.ctx, rows, logits.view());
    return logits;
  }
};

TEST_F(ReadWhole, LogitsOfAllTokensGiveTheLossOfAnEvaluation) {
  for (const Family family : {Family::gpt2, Family::llama}) {
    ModelSpec spec = small_model(family);
    spec.logit_softcap = family == Family::llama ? 2 : 0;
    StageHarness run(spec, options());
    (void)run.forward(Mode::evaluate);
    const std::vector<double> scores = test::to_doubles(run.stage->results().target_scores);
    const auto targets = run.stage->batch({}).targets.span<std::int32_t>();
    std::vector<Dim> rows(kB * kT);
    std::iota(rows.begin(), rows.end(), Dim{0});
    const Tensor logits = logits_of(run, rows);

    for (std::size_t row = 0; row < rows.size(); ++row) {
      const float* of_row = logits.view().data<float>() + row * run.stage->results().logits_columns;
      double sum = 0;
      for (Dim v = 0; v < spec.vocabulary; ++v) sum += std::exp(double{of_row[v]});
      const double loss = std::log(sum) - double{of_row[targets[row]]};
      EXPECT_NEAR(loss, scores[row * ops::kTargetScoreCount + ops::kScoreLoss], 1e-5) << row;
    }
  }
}

TEST_F(ReadWhole, LogitsOfSomeTokensHaveTheBitsOfAll) {
  StageHarness run(small_model(Family::llama), options());
  std::vector<Dim> all(kB * kT);
  std::iota(all.begin(), all.end(), Dim{0});
  const Tensor expected = logits_of(run, all);
  for (const std::vector<Dim>& rows :
       {std::vector<Dim>{0}, std::vector<Dim>{9, 10}, std::vector<Dim>{3, 29, 30, 31, 47}}) {
    const Tensor found = logits_of(run, rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(test::to_doubles(found.view().slice(static_cast<Dim>(i), 1)),
                test::to_doubles(expected.view().slice(rows[i], 1)))
          << rows[i];
    }
  }
}

TEST_F(ReadWhole, AStageThatWasNotPlannedForItRefuses) {
  StageHarness run(small_model(Family::gpt2), small_stage(kB, kT, false));
  EXPECT_THROW((void)logits_of(run, {0}), Error);
}

}  // namespace
}  // namespace hyperslab::model
