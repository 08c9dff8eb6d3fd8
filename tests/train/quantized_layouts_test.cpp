// SPDX-License-Identifier: Apache-2.0
// Quantized matrices and tables on tensor ranks: the codes, scales and losses of one rank.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "hyperslab/core/transfer.hpp"
#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "support/tensors.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::SmallRun;
using test::world;
using Overrides = std::vector<std::string>;

constexpr int kQuantizedSteps = 3;
constexpr const char* kUntied = "model.tie_embeddings=false";

/// Every rank of up to four holds columns of a multiple of 16, and a part of the 67 tokens.
Overrides with(Overrides more, const Overrides& layout = {}) {
  more.insert(more.end(), {"model.width=64", "model.ffn_width=128"});
  more.insert(more.end(), layout.begin(), layout.end());
  return more;
}
Overrides tensor_layout() {
  return {fmt::format("parallel.tensor={}", world().size()), "parallel.sequence=true"};
}

train::Config config_of(const Overrides& overrides, int ranks, bool training) {
  deck::Surroundings surroundings;
  surroundings.ranks = ranks;
  surroundings.for_training = training;
  return deck::read_deck(test::kSmallDeck, "small.yaml", overrides, surroundings);
}

/// The same deck on the tensor ranks and on each rank alone.
class TwoRuns {
 public:
  explicit TwoRuns(const Overrides& overrides, bool training = true)
      : config_(config_of(with(overrides, tensor_layout()), world().size(), training)),
        single_(config_of(with(overrides), 1, training)),
        mesh_(world(), Device::cpu, config_.parallel, config_.groups()),
        alone_(mesh::Mesh::plan(single_.parallel, 0)),
        many(config_, mesh_, world().rank(), options(training)),
        one(single_, alone_, 0, options(training)) {}

 private:
  static train::TrainerOptions options(bool training) {
    train::TrainerOptions options;
    options.training = training;
    return options;
  }
  train::Config config_;
  train::Config single_;
  mesh::Mesh mesh_;
  mesh::Mesh alone_;

 public:
  SmallRun many;
  SmallRun one;
};

/// A member's rows of an array with some columns for each.
std::vector<double> rows_of(CView array, Dim first, Dim count) {
  return count == 0 ? std::vector<double>() : test::to_doubles(array.slice(first, count));
}

const param::QuantizedWeight& named(SmallRun& run, const std::string& name) {
  for (const param::QuantizedWeight& matrix : run.trainer().stage().params().quantized_weights()) {
    if (matrix.members.front()->name == name) return matrix;
  }
  throw std::runtime_error("no matrix " + name);
}

/// EXPECTs this rank's part of an array of the whole matrix; `elements`: columns of the matrix that
/// share an entry of the array, 0: the row.
void expect_part(const param::QuantizedWeight& part, const param::QuantizedWeight& whole,
                 CView found, CView expected, Dim elements) {
  Dim row = 0;
  Dim whole_row = 0;
  for (std::size_t i = 0; i < part.members.size(); ++i) {
    const param::Param& member = *part.members[i];
    const Dim count = member.part.count[0];
    const Dim columns = elements == 0 ? 1 : member.part.count[1] / elements;
    const Dim all_columns = elements == 0 ? 1 : member.global_shape[1] / elements;
    const Dim first = elements == 0 ? 0 : member.part.offset[1] / elements;
    const std::vector<double> mine = rows_of(found, row, count);
    const std::vector<double> all = rows_of(expected, whole_row + member.part.offset[0], count);
    for (Dim r = 0; r < count; ++r) {
      for (Dim c = 0; c < columns; ++c) {
        ASSERT_EQ(mine[r * columns + c], all[r * all_columns + first + c])
            << member.name << " " << r << ", " << c;
      }
    }
    row += member.stored_rows;
    whole_row += whole.members[i]->stored_rows;
  }
}

void expect_parts_of_codes(TwoRuns& runs) {
  const auto& parts = runs.many.trainer().stage().params().quantized_weights();
  ASSERT_FALSE(parts.empty());
  for (const param::QuantizedWeight& part : parts) {
    const param::QuantizedWeight& whole = named(runs.one, part.members.front()->name);
    const bool is_int8 = part.spec.format == ops::WeightFormat::int8;
    expect_part(part, whole, part.matrix.codes, whole.matrix.codes, is_int8 ? 1 : 2);
    expect_part(part, whole, part.matrix.scales, whole.matrix.scales,
                is_int8 ? 0 : part.matrix.group);
  }
}

double evaluated(SmallRun& run) {
  const auto tokens = io::open_tokens({"synthetic"}, io::RawIds::uint16, 67, 11);
  const io::TokenSamples samples(*tokens, io::Sampling::blocks, 12, 11);
  return run.trainer().evaluate(samples, 12, world()).loss();
}

TEST(FrozenOnTensorRanks, InitialCodesAndLossesAreThoseOfOneRank) {
  TwoRuns runs({"adapter.rank=2", "model.frozen_format=int8"});

  expect_parts_of_codes(runs);
  for (int step = 1; step <= kQuantizedSteps; ++step) {
    const double loss = runs.one.step(step);
    EXPECT_NEAR(runs.many.step(step), loss, 1e-5 * loss) << step;
  }
}

/// Deck keys of a quantized model that is not trained.
class Stored : public testing::TestWithParam<Overrides> {};

/// Rounded at load, from a checkpoint of values that one rank wrote.
TEST_P(Stored, CodesAreThoseOfOneRank) {
  const test::TempFolder folder;
  const std::string path = world().broadcast(folder.path());
  const bool tied = GetParam().back() != kUntied;
  {
    const train::Config config = config_of(with(tied ? Overrides{} : Overrides{kUntied}), 1, true);
    const mesh::Mesh alone = mesh::Mesh::plan(config.parallel, 0);
    SmallRun run(config, alone, 0);
    for (int step = 1; step <= kQuantizedSteps; ++step) run.step(step);
    const std::vector<io::Slab> all = run.trainer().state().slabs();
    io::CheckpointMeta meta;
    meta.step = kQuantizedSteps;
    run.trainer().state().fill_meta(meta);
    io::save_checkpoint(world(), path, meta, world().rank() == 0 ? all : std::vector<io::Slab>());
  }
  TwoRuns runs(GetParam(), false);
  const io::CheckpointReader reader(path);

  runs.many.trainer().state().load(reader);
  runs.one.trainer().state().load(reader);
  (void)world().sum(0);  // the folder goes with the first rank's test

  expect_parts_of_codes(runs);
  const double loss = evaluated(runs.one);
  EXPECT_NEAR(evaluated(runs.many), loss, 1e-6 * loss);
}

INSTANTIATE_TEST_SUITE_P(
    Weights, Stored,
    testing::Values(Overrides{"quantization.weights=int8"},
                    Overrides{"quantization.weights=int4", "quantization.group=16"},
                    Overrides{"quantization.weights=int8", "quantization.embeddings=true"},
                    Overrides{"quantization.weights=int4", "quantization.group=16",
                              "quantization.head=true", kUntied},
                    Overrides{"quantization.weights=int8", "quantization.head=true",
                              "quantization.embeddings=true", kUntied}));

/// Deck keys of a way to train with fake quantization.
class SimulatedLayouts : public testing::TestWithParam<Overrides> {};

TEST_P(SimulatedLayouts, MatricesAreRoundedAsOnOneRank) {
  TwoRuns runs(GetParam());
  Context& many = runs.many.trainer().context();
  Context& one = runs.one.trainer().context();
  model::Stage& stage = runs.many.trainer().stage();
  const param::ParamStore& parts = stage.params();
  const auto dequantize = [](Context& ctx, model::Stage& of, int unit) {
    of.presence().for_units(ctx, unit, unit + 1, sharding::Order::ascending, [](int) {});
  };

  for (int unit = 0; unit < parts.units(); ++unit) {
    dequantize(many, stage, unit);
    dequantize(one, runs.one.trainer().stage(), unit);
    for (const param::QuantizedWeight& part : parts.quantized_weights()) {
      if (part.unit != unit) continue;
      const param::QuantizedWeight& whole = named(runs.one, part.members.front()->name);
      expect_part(part, whole, part.dequantized, whole.dequantized, 1);
    }
  }
}

TEST_P(SimulatedLayouts, LossesAreThoseOfOneRank) {
  TwoRuns runs(GetParam());
  const bool rounds_inputs =
      GetParam().size() > 1 && GetParam()[1].starts_with("quantization.activations");
  // Ranks round their columns of a row of activations by a scale of their own.
  const double within = rounds_inputs && world().size() > 1 ? 2e-3 : 1e-5;
  for (int step = 1; step <= kQuantizedSteps; ++step) {
    const double loss = runs.one.step(step);
    EXPECT_NEAR(runs.many.step(step), loss, within * loss) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Weights, SimulatedLayouts,
    testing::Values(Overrides{"quantization.weights=int8"},
                    Overrides{"quantization.weights=int8", "quantization.activations=dynamic-int8"},
                    Overrides{"quantization.weights=int4", "quantization.group=16"},
                    Overrides{"quantization.weights=int8", "memory.recompute=full"},
                    Overrides{"quantization.weights=int8", "experts.count=3", "experts.width=64",
                              "model.bias=false"},
                    Overrides{"quantization.weights=int4", "quantization.group=16",
                              "experts.count=3", "experts.width=64", "experts.shared=1",
                              "model.bias=false"}));

TEST(AdapterDropout, LossesAreThoseOfOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    TwoRuns runs({"adapter.rank=2", "adapter.dropout=0.3", fmt::format("model.family={}", family)});
    TwoRuns whole({"adapter.rank=2", fmt::format("model.family={}", family)});

    // The first step's B are zero, so that only later losses depend on what was dropped.
    for (int step = 1; step <= 3 * kQuantizedSteps; ++step) {
      const double loss = runs.one.step(step);
      EXPECT_NEAR(runs.many.step(step), loss, 1e-6 * loss) << step;
      const double kept = whole.one.step(step);
      if (step < 3 * kQuantizedSteps) continue;
      EXPECT_GT(std::abs(loss - kept), 1e-5 * loss);
    }
  }
}

}  // namespace
}  // namespace hyperslab
