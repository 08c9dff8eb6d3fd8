// SPDX-License-Identifier: Apache-2.0
// Loss and feed-forward networks in pieces of rows, against all rows at once.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <vector>

#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using test::small_model;
using test::small_stage;
using test::StageHarness;

constexpr Dim kSamples = 3;
constexpr Dim kTokens = 16;

struct PiecesModel {
  Family family = Family::llama;
  NormPlace place = NormPlace::pre;
  bool parallel = false;
  bool adapters = false;
  friend std::ostream& operator<<(std::ostream& out, const PiecesModel& model) {
    return out << name_of(model.family) << " place " << static_cast<int>(model.place)
               << (model.parallel ? " parallel" : "") << (model.adapters ? " adapters" : "");
  }
};

class Pieces : public testing::TestWithParam<PiecesModel> {
 protected:
  [[nodiscard]] static ModelSpec spec() {
    ModelSpec spec = small_model(GetParam().family);
    spec.norm_place = GetParam().place;
    spec.parallel_block = GetParam().parallel;
    spec.logit_softcap = GetParam().parallel ? 2 : 0;
    spec.dropout = 0.1;
    return spec;
  }
  [[nodiscard]] static StageOptions options(Dim loss_rows, Dim mlp_rows) {
    StageOptions out = small_stage(kSamples, kTokens, true);
    out.recompute = nn::Recompute::full;
    out.logits_bytes = 32U << 20;
    out.loss_rows = loss_rows;
    out.mlp_rows = mlp_rows;
    if (GetParam().adapters) out.adapter.rank = 4;
    return out;
  }
  /// The zeros with which adapters start would hide a half of their gradients.
  static void fill_adapters(StageHarness& run) {
    std::uint64_t seed = 100;
    for (const param::Param& param : run.stage->params().params()) {
      if (param.role != param::Role::adapter) continue;
      const Tensor values = test::random_tensor(DType::f32, param.value.shape(), seed++, 0.1);
      std::ranges::copy(values.view().span<float>(), param.value.span<float>().begin());
    }
  }
};

/// The mean loss, every token's, and all gradients of a training pass.
struct Passed {
  double loss = 0;
  std::vector<double> scores;
  std::vector<double> gradients;
};

Passed pass_of(StageHarness& run) {
  Passed out;
  out.loss = run.forward(Mode::train);
  run.backward();
  out.gradients = test::to_doubles(run.presence.gradients().sums().data);
  (void)run.forward(Mode::evaluate);
  out.scores = test::to_doubles(run.stage->results().target_scores);
  return out;
}

TEST_P(Pieces, OfAnySizeGiveTheLossAndTheGradientsOfTheWhole) {
  StageHarness whole(spec(), options(0, 0));
  fill_adapters(whole);
  const Passed expected = pass_of(whole);
  for (const Dim rows : {1, 5, 16, 17, 47}) {
    StageHarness run(spec(), options(rows, rows));
    fill_adapters(run);
    const Passed pieces = pass_of(run);

    // Products of another number of rows are rounded in another order.
    for (std::size_t i = 0; i < expected.scores.size(); ++i) {
      EXPECT_NEAR(pieces.scores[i], expected.scores[i], 3e-6) << rows << " rows, score " << i;
    }
    EXPECT_NEAR(pieces.loss, expected.loss, 1e-6 * expected.loss) << rows << " rows";
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
      difference += std::pow(pieces.gradients[i] - expected.gradients[i], 2);
      norm += std::pow(expected.gradients[i], 2);
    }
    EXPECT_LT(std::sqrt(difference), test::tolerance(DType::f32) * std::sqrt(norm)) << rows;
  }
}

TEST_P(Pieces, AsLargeAsTheWholeGiveItsBits) {
  StageHarness whole(spec(), options(0, 0));
  fill_adapters(whole);
  const Passed expected = pass_of(whole);
  for (const Dim rows : {kSamples * kTokens, 10 * kSamples * kTokens}) {
    StageHarness run(spec(), options(rows, rows));
    fill_adapters(run);
    const Passed pieces = pass_of(run);

    EXPECT_EQ(pieces.loss, expected.loss) << rows;
    EXPECT_EQ(pieces.gradients, expected.gradients) << rows;
  }
}

TEST_P(Pieces, GradientMatchesAFiniteDifference) {
  StageHarness run(spec(), options(7, 5));
  fill_adapters(run);
  run.forward(Mode::train);
  run.backward();
  for (const param::Param& param : run.stage->params().params()) {
    if (param.name.find(".mlp.") == std::string::npos || !param.gradient) continue;
    const auto gradient = test::to_doubles(param.gradient);
    const auto direction =
        test::to_doubles(test::random_tensor(DType::f32, param.part.count, 5).view());
    double expected = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
    const auto moved = [&](double by) {
      const auto weight = param.master.span<float>();
      for (std::size_t i = 0; i < weight.size(); ++i) {
        weight[i] += static_cast<float>(by * direction[i]);
      }
      return run.forward(Mode::train);
    };
    const double up = moved(2e-3);
    const double down = moved(-4e-3);
    (void)moved(2e-3);

    EXPECT_NEAR((up - down) / 4e-3, expected, 2e-2 * std::abs(expected) + 1e-3) << param.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Pieces,
                         testing::Values(PiecesModel{}, PiecesModel{.family = Family::gpt2},
                                         PiecesModel{.place = NormPlace::sandwich},
                                         PiecesModel{.place = NormPlace::post},
                                         PiecesModel{.parallel = true},
                                         PiecesModel{.adapters = true},
                                         PiecesModel{.family = Family::gpt2, .adapters = true}));

/// A prompt is longer than a piece, so that it takes several.
TEST(PiecesOfATrainingStage, GenerateWhatAWholeOneDoes) {
  const auto options = [](Dim mlp_rows) {
    StageOptions out = small_stage(1, kTokens, true);
    out.generation = Generation::cached;
    out.recompute = nn::Recompute::full;
    out.mlp_rows = mlp_rows;
    return out;
  };
  StageHarness whole(small_model(Family::llama), options(0));
  StageHarness pieces(small_model(Family::llama), options(5));
  const View tokens = whole.stage->batch({}).tokens;
  for (const Dim length : {1, 5, 13}) {
    const View part(tokens.raw(), DType::i32, Device::cpu, {1, length});
    Tensor expected(Device::cpu, DType::f32, {1, 101});
    Tensor logits(Device::cpu, DType::f32, {1, 101});
    whole.stage->decode(*whole.ctx, part, 0, expected.view());
    pieces.stage->decode(*pieces.ctx, part, 0, logits.view());

    test::expect_close(logits.view(), expected.view(), "logits", 0.5);
  }
}

}  // namespace
}  // namespace hyperslab::model
