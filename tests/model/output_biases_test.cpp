// SPDX-License-Identifier: Apache-2.0
// Gradients of the biases of sublayers' outputs, which a norm computes in some blocks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "stage_harness.hpp"

namespace hyperslab::model {
namespace {

using nn::BackwardPart;
using test::small_model;
using test::small_stage;
using test::StageHarness;

struct Case {
  const char* what;
  ModelSpec spec;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* what) -> ModelSpec& {
    return all.emplace_back(Case{what, small_model(Family::gpt2)}).spec;
  };
  add("norms before");
  add("norms without biases").norm = ops::NormKind::rmsnorm;
  add("no norms").norm = ops::NormKind::none;
  add("dropout").dropout = 0.3;
  add("drop path").drop_path = 0.3;
  add("norms after").norm_place = NormPlace::post;
  add("norms of outputs").norm_place = NormPlace::sandwich;
  add("parallel").parallel_block = true;
  return all;
}

struct Gradient {
  std::string name;
  std::vector<double> values;
};

/// Of every bias. A split pass leaves them to the linear layers always.
std::vector<Gradient> gradients_of_biases(const ModelSpec& spec, bool split) {
  StageOptions options = small_stage(3, 16, true);
  options.split_backward = split;
  StageHarness run(spec, options);
  (void)run.forward(Mode::train);
  const auto parts = split ? std::vector{BackwardPart::input, BackwardPart::weight}
                           : std::vector{BackwardPart::both};
  for (int unit = run.stage->units() - 1; unit >= 0; --unit) {
    for (const BackwardPart part : parts) {
      run.stage->backward(*run.ctx, {}, unit, {&run.state, run.sums.view()}, nn::Accumulate::no,
                          part);
    }
  }
  std::vector<Gradient> out;
  for (const param::Param* param : run.stage->params().trained().params()) {
    if (param->name.ends_with(".bias")) {
      out.push_back({param->name, test::to_doubles(param->gradient)});
    }
  }
  return out;
}

TEST(OutputBiases, HaveTheGradientsOfASplitBackwardPass) {
  for (const auto& [what, spec] : cases()) {
    SCOPED_TRACE(what);
    const std::vector<Gradient> found = gradients_of_biases(spec, false);
    const std::vector<Gradient> expected = gradients_of_biases(spec, true);

    ASSERT_FALSE(found.empty());
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(found[i].name);
      for (std::size_t k = 0; k < found[i].values.size(); ++k) {
        EXPECT_NEAR(found[i].values[k], expected[i].values[k], 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::model
