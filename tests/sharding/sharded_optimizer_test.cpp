// SPDX-License-Identifier: Apache-2.0
// Optimizers on the shards of a table's data ranks against the same on the whole of it.
#include <gtest/gtest.h>

#include <cmath>

#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/optimizer.hpp"
#include "sharding/tables.hpp"

namespace hyperslab::optim {
namespace {

using test::BoundTable;
using test::TableCase;

constexpr int kSteps = 3;

struct Chosen {
  OptimizerKind optimizer;
  DType compute;
  StateKind state = StateKind::fp32;
};

/// Of a flat element in a step; -1: its master at the beginning.
double number(Dim flat, int step) {
  return std::sin(static_cast<double>(flat) * 1.7 + static_cast<double>(step) * 0.9);
}

ops::StepState state_of(int step) {
  ops::StepState state;
  state.input.step = step;
  state.adam_step = step;
  state.input.learning_rate = 1e-2F / static_cast<float>(step);
  state.clip_scale = 0.75F;
  state.bias_correction1 = 1 - std::pow(0.9F, static_cast<float>(step));
  state.bias_correction2 = 1 - std::pow(0.95F, static_cast<float>(step));
  return state;
}

/// Matrices have a learning rate of their own if the optimizer can have that.
TableCase with_rates(TableCase c, const Chosen& chosen) {
  c.width_ratio = traits_of(chosen.optimizer).takes_rates ? 3 : 1;
  return c;
}

/// A table with its optimizer, on the CPU.
class Optimized {
 public:
  Optimized(const TableCase& c, const Chosen& chosen, int zero, int rank)
      : bound_(with_rates(c, chosen), chosen.compute, zero, rank),
        arena_("optimizer", Device::cpu, 1 << 18) {
    OptimizerConfig config;
    config.name = chosen.optimizer;
    config.state = chosen.state;
    config.cautious_decay = chosen.state == StateKind::bf16;
    config.decay_embeddings = false;
    config.ema_decay = 0.75;
    config.ema_start_step = 1;
    optimizer_ = make_optimizer(config, group(), {bound_.presence().shards_state(), arena_});
    optimizer_->initialize(ctx_);
    fill(group().master(), -1);
  }
  [[nodiscard]] const param::ParamGroup& group() const { return bound_.group(); }
  [[nodiscard]] const Optimizer& optimizer() const { return *optimizer_; }
  [[nodiscard]] std::vector<param::ElementRange> ranges() {
    return bound_.presence().values().updated_ranges();
  }

  void update(const ops::StepState& state, int step) {
    const param::StateView& gradients = bound_.presence().gradients().sums();
    fill(gradients, step);
    for (const param::ElementRange& range : ranges()) {
      optimizer_->update(ctx_, &state, gradients, range);
    }
  }

 private:
  void fill(const param::StateView& values, int step) {
    if (!values.sharded) return fill_range(values.data, 0, 0, group().flat_size(), step);
    for (const auto& [in_flat, in_shards, size] : ranges()) {
      fill_range(values.data, in_shards, in_flat, size, step);
    }
  }
  static void fill_range(View view, Dim begin, Dim flat, Dim size, int step) {
    for (Dim i = 0; i < size; ++i) {
      if (view.dtype() == DType::f64) {
        view.data<double>()[begin + i] = number(flat + i, step);
      } else {
        view.data<float>()[begin + i] = static_cast<float>(number(flat + i, step));
      }
    }
  }
  Context ctx_{Device::cpu};
  BoundTable bound_;
  Arena arena_;
  std::unique_ptr<Optimizer> optimizer_;
};

void expect_equal_bits(CView mine, CView expected, const char* what) {
  ASSERT_EQ(mine.bytes(), expected.bytes()) << what;
  EXPECT_EQ(std::memcmp(mine.raw(), expected.raw(), expected.bytes()), 0) << what;
}

/// Everything that a rank keeps of a range, against the whole.
void expect_part_of(Optimized& part, Optimized& whole, const param::ElementRange& range) {
  const auto expect = [&](const param::StateView& mine, const param::StateView& all,
                          const std::string& what) {
    expect_equal_bits(mine.at(range), all.at(range), what.c_str());
  };
  expect(part.group().master(), whole.group().master(), "master");
  expect(part.group().value(), whole.group().value(), "value");
  const std::vector<Optimizer::State> found = part.optimizer().state();
  const std::vector<Optimizer::State> expected = whole.optimizer().state();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect(found[i].values, expected[i].values, found[i].name);
  }
  const Dim granule = ops::kDecayGranule;
  const auto of_range = [&](const param::StateView& table) {
    return table.data.slice(table.index(range) / granule, range.size / granule);
  };
  const Optimizer& mine = part.optimizer();
  const Optimizer& all = whole.optimizer();
  expect_equal_bits(of_range(mine.decay()), of_range(all.decay()), "decay");
  ASSERT_EQ(static_cast<bool>(mine.rate()), static_cast<bool>(all.rate()));
  if (mine.rate()) expect_equal_bits(of_range(mine.rate()), of_range(all.rate()), "rate");
}

class ShardedOptimizer : public testing::TestWithParam<Chosen> {};

TEST_P(ShardedOptimizer, UpdatesEveryShardAsTheWholeIsUpdated) {
  for (const TableCase& c : test::table_cases()) {
    Optimized whole(c, GetParam(), 0, 0);
    for (int step = 1; step <= kSteps; ++step) whole.update(state_of(step), step);
    for (const int zero : {1, 2}) {
      for (int rank = 0; rank < c.data; ++rank) {
        SCOPED_TRACE("zero " + std::to_string(zero) + " rank " + std::to_string(rank) + " of " +
                     std::to_string(c.data));
        Optimized part(c, GetParam(), zero, rank);
        for (int step = 1; step <= kSteps; ++step) part.update(state_of(step), step);

        for (const param::ElementRange& range : part.ranges()) expect_part_of(part, whole, range);
      }
    }
  }
}

/// Other ranks' values are theirs to write.
TEST_P(ShardedOptimizer, LeavesTheShardsOfOthersAlone) {
  const TableCase c = {.data = 3};
  Optimized part(c, GetParam(), 1, 1);
  const param::ParamGroup& group = part.group();
  const View value = group.value().data;
  std::vector<char> before(value.bytes());
  std::memcpy(before.data(), value.raw(), before.size());

  part.update(state_of(1), 1);

  const auto* after = static_cast<const char*>(value.raw());
  const auto element = static_cast<Dim>(size_of(value.dtype()));
  for (const param::Bucket& bucket : group.buckets()) {
    const Dim first = group.shard(bucket).in_flat;
    const Dim last = first + group.shard(bucket).size;
    for (Dim i = bucket.begin * element; i < bucket.end * element; ++i) {
      if (i >= first * element && i < last * element) continue;
      ASSERT_EQ(after[i], before[static_cast<std::size_t>(i)]) << "byte " << i;
    }
    EXPECT_NE(std::memcmp(after + first * element, before.data() + first * element,
                          static_cast<std::size_t>((last - first) * element)),
              0);
  }
}

TEST_P(ShardedOptimizer, SkippedStepsChangeNothing) {
  const TableCase c = {.data = 2};
  Optimized once(c, GetParam(), 2, 1);
  Optimized twice(c, GetParam(), 2, 1);
  once.update(state_of(1), 1);
  twice.update(state_of(1), 1);
  ops::StepState skipped = state_of(2);
  skipped.skip = 1;

  twice.update(skipped, 2);

  expect_equal_bits(twice.group().master().data, once.group().master().data, "master");
  expect_equal_bits(twice.group().value().data, once.group().value().data, "value");
  const auto first_state = [](Optimized& o) { return o.optimizer().state().front().values.data; };
  expect_equal_bits(first_state(twice), first_state(once), "first state");
  expect_equal_bits(twice.optimizer().average().data, once.optimizer().average().data, "average");
}

std::vector<Chosen> choices() {
  std::vector<Chosen> all;
  for (const OptimizerTraits& optimizer : kOptimizerTraits) {
    if (optimizer.kind == OptimizerKind::muon) continue;  // whole matrices: see muon_test
    for (const DType compute : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      all.push_back({optimizer.kind, compute});
    }
    if (!optimizer.has_bf16_state) continue;
    for (const DType compute : {DType::f32, DType::bf16}) {
      all.push_back({optimizer.kind, compute, StateKind::bf16});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Choices, ShardedOptimizer, testing::ValuesIn(choices()),
                         [](const auto& chosen) {
                           return std::string(traits_of(chosen.param.optimizer).name) + "_" +
                                  std::string(name_of(chosen.param.compute)) +
                                  (chosen.param.state == StateKind::bf16 ? "_state_in_bf16" : "");
                         });

}  // namespace
}  // namespace hyperslab::optim
