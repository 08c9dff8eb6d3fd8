// SPDX-License-Identifier: Apache-2.0
// Quantized matrices: frozen below adapters, rounded while they are trained, and read as they are
// stored by a run that trains nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "support/tensors.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::SmallRun;
using test::world;
using Overrides = std::vector<std::string>;

constexpr int kWeightSteps = 4;
/// Every matrix has rows of a multiple of 64.
const Overrides kWide = {"model.width=64", "model.ffn_width=128"};

/// Layers of dense networks, or of experts: matrices of all of them are one.
const Overrides kDense = {};
const Overrides kOfExperts = {"model.bias=false", "experts.count=3", "experts.width=128"};

Overrides joined(Overrides all, const Overrides& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<std::uint8_t> bytes_of(CView view) {
  const auto* begin = static_cast<const std::uint8_t*>(view.raw());
  return {begin, begin + view.bytes()};
}

class Quantized : public testing::Test {
 protected:
  static SmallRun run_of(const Overrides& overrides, bool training = true, bool canary = false) {
    const train::Config config = test::small_config(joined(kWide, overrides), 1);
    static const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
    train::TrainerOptions options;
    options.training = training;
    options.canary = canary;
    return {config, mesh, 0, options};
  }
  static const std::deque<param::QuantizedWeight>& matrices(SmallRun& run) {
    return run.trainer().stage().params().quantized_weights();
  }
  static double loss_of(SmallRun& run) {
    const auto tokens = io::open_tokens({"synthetic"}, io::RawIds::uint16, 67, 11);
    const io::TokenSamples samples(*tokens, io::Sampling::blocks, 12, 11);
    return run.trainer().evaluate(samples, 12, world()).loss();
  }
  /// A checkpoint of a run after some steps.
  static void save(SmallRun& run, const std::string& folder) {
    io::CheckpointMeta meta;
    meta.step = kWeightSteps;
    run.trainer().state().fill_meta(meta);
    io::save_checkpoint(world(), folder, meta, run.trainer().state().slabs());
  }
};

/// A model and a format.
class FrozenQuantized : public Quantized,
                        public testing::WithParamInterface<std::tuple<Overrides, std::string>> {
 protected:
  static Overrides plain(const Overrides& more = {}) {
    return joined(joined(std::get<0>(GetParam()), {"adapter.rank=2"}), more);
  }
  static Overrides frozen(const Overrides& more = {}) {
    return joined(plain(more), {"model.frozen_format=" + std::get<1>(GetParam())});
  }
};

/// Those of a plain run, rounded as whole matrices.
void expect_rounded_values(SmallRun& plain, SmallRun& run) {
  std::map<std::string, std::vector<double>> values;
  for (const param::Param& param : plain.trainer().stage().params().params()) {
    values[param.name] = test::to_doubles(param.value);
  }
  Context ctx(Device::cpu);

  for (const param::QuantizedWeight& matrix : run.trainer().stage().params().quantized_weights()) {
    std::vector<double> all;
    for (const param::Param* member : matrix.members) {
      EXPECT_FALSE(member->value) << member->name;
      EXPECT_FALSE(member->gradient) << member->name;
      all.insert(all.end(), values[member->name].begin(), values[member->name].end());
    }
    const Tensor expected = test::tensor_of(DType::f32, matrix.shape, all);
    Tensor rounded(Device::cpu, DType::f32, matrix.shape);
    Tensor widened(Device::cpu, DType::f32, matrix.shape);
    ops::fake_quantize(ctx, matrix.spec.format, matrix.matrix.group, expected.view(),
                       rounded.view());
    ops::dequantize(ctx, ops::as_const(matrix.matrix), widened.view());
    EXPECT_EQ(test::to_doubles(widened.view()), test::to_doubles(rounded.view()))
        << matrix.members.front()->name;
  }
}

TEST_P(FrozenQuantized, MatricesHoldTheirInitialValuesRounded) {
  SmallRun values = run_of(plain());
  SmallRun run = run_of(frozen());
  ASSERT_EQ(matrices(run).size(), 3U * 4U);
  expect_rounded_values(values, run);
}

/// Both matrices of the network are larger than what is rounded at once; one is cut between rows
/// that share a scale of scales in nf4, if they were cut just anywhere.
TEST_P(FrozenQuantized, LargeMatricesAreRoundedInPieces) {
  const bool dense = std::get<0>(GetParam()).empty();
  const Overrides large = {"model.layers=1",
                           dense ? "model.ffn_width=65600" : "experts.width=22400"};
  SmallRun values = run_of(plain(large));
  SmallRun run = run_of(frozen(large));
  expect_rounded_values(values, run);
}

TEST_P(FrozenQuantized, MatricesStayAsTheyAreAndAdaptersMove) {
  SmallRun run = run_of(frozen(), true, true);
  std::vector<std::vector<std::uint8_t>> before;
  for (const param::QuantizedWeight& matrix : matrices(run)) {
    before.push_back(bytes_of(matrix.matrix.codes));
    before.push_back(bytes_of(matrix.matrix.scales));
  }
  const double first = run.step(1);
  double last = first;
  for (int step = 2; step <= kWeightSteps; ++step) last = run.step(step);

  EXPECT_NE(last, first);
  std::vector<std::vector<std::uint8_t>> after;
  for (const param::QuantizedWeight& matrix : matrices(run)) {
    after.push_back(bytes_of(matrix.matrix.codes));
    after.push_back(bytes_of(matrix.matrix.scales));
  }
  EXPECT_EQ(before, after);
  const model::Arenas& arenas = run.trainer().arenas();
  EXPECT_EQ(arenas.parameters.highest_touched(), run.plan().memory.parameters);
  EXPECT_LT(run.plan().memory.gradients, run.plan().memory.parameters / 4);
}

/// Training widens the matrices ahead of their products; a run that trains nothing reads the bits.
TEST_P(FrozenQuantized, RunThatTrainsNothingGivesTheLossOfTraining) {
  SmallRun run = run_of(frozen());
  for (int step = 1; step <= kWeightSteps; ++step) run.step(step);
  const test::TempFolder folder;
  save(run, folder.path());
  SmallRun stored = run_of(frozen(), false);

  stored.trainer().state().load(io::CheckpointReader(folder.path()));

  EXPECT_NEAR(loss_of(stored), loss_of(run), 1e-6);
  EXPECT_EQ(stored.trainer().arenas().gradients.used_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Formats, FrozenQuantized,
                         testing::Combine(testing::Values(kDense, kOfExperts),
                                          testing::Values("int8", "int4", "nf4")));

/// A model and deck keys of a way to quantize.
class Simulated : public Quantized,
                  public testing::WithParamInterface<std::tuple<Overrides, Overrides>> {
 protected:
  static Overrides rounded() { return joined(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(Simulated, TrainingGivesTheLossOfTheQuantizedModel) {
  SmallRun run = run_of(rounded());
  for (int step = 1; step <= kWeightSteps; ++step) run.step(step);
  const test::TempFolder folder;
  save(run, folder.path());
  SmallRun stored = run_of(rounded(), false);

  stored.trainer().state().load(io::CheckpointReader(folder.path()));

  EXPECT_EQ(loss_of(stored), loss_of(run));  // bit for bit
  SmallRun plain = run_of(std::get<0>(GetParam()), false);
  plain.trainer().state().load(io::CheckpointReader(folder.path()));
  EXPECT_NE(loss_of(plain), loss_of(run));
}

INSTANTIATE_TEST_SUITE_P(
    Weights, Simulated,
    testing::Combine(testing::Values(kDense, kOfExperts),
                     testing::Values(Overrides{"quantization.weights=int8"},
                                     Overrides{"quantization.weights=int4"},
                                     Overrides{"quantization.weights=int4",
                                               "quantization.group=32"},
                                     Overrides{"quantization.weights=int8",
                                               "quantization.activations=dynamic-int8"})));

TEST_F(Quantized, FakeQuantizationBeginsAfterItsStep) {
  SmallRun plain = run_of({});
  SmallRun later = run_of({"quantization.weights=int4", "quantization.after=2"});
  SmallRun always = run_of({"quantization.weights=int4"});

  EXPECT_NE(always.step(1), plain.step(1));
  const double second = plain.step(2);
  const double third = plain.step(3);
  (void)later.step(1);
  EXPECT_EQ(later.step(2), second);
  EXPECT_NE(later.step(3), third);
}

/// Rounding has no derivative; the gradient of the rounded weight is taken for the weight's.
class StraightThrough : public Quantized, public testing::WithParamInterface<Overrides> {};
TEST_P(StraightThrough, GradientsAreThoseOfTheRoundedValues) {
  SmallRun rounded = run_of(joined(GetParam(), {"quantization.weights=int8"}));
  SmallRun widened = run_of(GetParam());
  Context ctx(Device::cpu);
  for (const param::Param& param : widened.trainer().stage().params().params()) {
    if (param.role != param::Role::matrix) continue;
    const Dim columns = param.value.shape()[1];
    ops::fake_quantize(ctx, ops::WeightFormat::int8, columns, param.value, param.value);
  }

  EXPECT_EQ(rounded.step(1), widened.step(1));

  const auto& expected = widened.trainer().stage().params().params();
  const auto& found = rounded.trainer().stage().params().params();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(test::to_doubles(found[i].gradient), test::to_doubles(expected[i].gradient))
        << found[i].name;
  }
}
INSTANTIATE_TEST_SUITE_P(Models, StraightThrough, testing::Values(kDense, kOfExperts));

}  // namespace
}  // namespace hyperslab
