// SPDX-License-Identifier: Apache-2.0
// AdamW on the shards of a table's data ranks against AdamW on the whole of it.
#include <gtest/gtest.h>

#include <cmath>

#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/optim/adamw.hpp"
#include "unit/sharding/tables.hpp"

namespace hyperslab::optim {
namespace {

using test::BoundTable;
using test::TableCase;

constexpr int kSteps = 3;

/// Of a flat element in a step; -1: its master at the beginning.
double number(Dim flat, int step) {
  return std::sin(static_cast<double>(flat) * 1.7 + static_cast<double>(step) * 0.9);
}

ops::StepState state_of(int step) {
  ops::StepState state;
  state.input.step = step;
  state.input.learning_rate = 1e-2F / static_cast<float>(step);
  state.clip_scale = 0.75F;
  state.bias_correction1 = 1 - std::pow(0.9F, static_cast<float>(step));
  state.bias_correction2 = 1 - std::pow(0.95F, static_cast<float>(step));
  return state;
}

/// A table with its optimizer, on the CPU.
class Optimized {
 public:
  Optimized(const TableCase& c, DType compute, const nn::Sharding& sharding)
      : bound_(c, compute, sharding), arena_("optimizer", Device::cpu, 1 << 18) {
    OptimizerConfig config;
    config.decay_embeddings = false;
    adamw_.emplace(config, table(), arena_);
    adamw_->initialize(ctx_);
    fill(table().master(), table().masters_are_sharded(), -1);
  }
  [[nodiscard]] nn::ParamTable& table() { return bound_.table(); }
  [[nodiscard]] const AdamW& adamw() const { return *adamw_; }

  void update(const ops::StepState& state, int step) {
    if (table().gradient_shards()) {
      fill(table().gradient_shards(), true, step);
    } else {
      fill(table().gradient(), false, step);
    }
    if (!adamw_->is_sharded()) return adamw_->update(ctx_, &state);
    for (const nn::Bucket& bucket : table().buckets()) adamw_->update(ctx_, &state, bucket);
  }

 private:
  void fill(View view, bool in_shards, int step) {
    for (const nn::Bucket& bucket : table().buckets()) {
      const Dim size = in_shards ? table().shard_size(bucket) : bucket.size();
      const Dim place = in_shards ? table().shard_in_space(bucket) : bucket.begin;
      const Dim flat = in_shards ? table().shard_in_flat(bucket) : bucket.begin;
      for (Dim i = 0; i < size; ++i) {
        if (view.dtype() == DType::f64) {
          view.data<double>()[place + i] = number(flat + i, step);
        } else {
          view.data<float>()[place + i] = static_cast<float>(number(flat + i, step));
        }
      }
    }
  }
  Context ctx_{Device::cpu};
  BoundTable bound_;
  Arena arena_;
  std::optional<AdamW> adamw_;
};

void expect_equal_bits(CView mine, CView wanted, const char* what) {
  ASSERT_EQ(mine.bytes(), wanted.bytes()) << what;
  EXPECT_EQ(std::memcmp(mine.raw(), wanted.raw(), wanted.bytes()), 0) << what;
}

/// Everything that a rank keeps of a bucket, against the whole.
void expect_shard_of(Optimized& cut, Optimized& whole, const nn::Bucket& bucket) {
  const nn::ParamTable& table = cut.table();
  const Dim size = table.shard_size(bucket);
  const Dim in_flat = table.shard_in_flat(bucket);
  const Dim in_space = table.shard_in_space(bucket);
  const auto expect = [&](View mine, bool in_shards, View all, const char* what) {
    expect_equal_bits(mine.slice(in_shards ? in_space : in_flat, size), all.slice(in_flat, size),
                      what);
  };
  expect(table.master(), table.masters_are_sharded(), whole.table().master(), "master");
  expect(table.value(), false, whole.table().value(), "value");
  expect(cut.adamw().exp_avg(), true, whole.adamw().exp_avg(), "exp_avg");
  expect(cut.adamw().exp_avg_sq(), true, whole.adamw().exp_avg_sq(), "exp_avg_sq");
  const Dim granule = ops::kDecayGranule;
  expect_equal_bits(cut.adamw().decay().slice(in_space / granule, size / granule),
                    whole.adamw().decay().slice(in_flat / granule, size / granule), "decay");
}

class ShardedAdamW : public testing::TestWithParam<DType> {};

TEST_P(ShardedAdamW, UpdatesEveryShardAsTheWholeIsUpdated) {
  for (const TableCase& c : test::table_cases()) {
    Optimized whole(c, GetParam(), {0, 0, c.data});
    for (int step = 1; step <= kSteps; ++step) whole.update(state_of(step), step);
    for (const int zero : {1, 2}) {
      for (int rank = 0; rank < c.data; ++rank) {
        SCOPED_TRACE("zero " + std::to_string(zero) + " rank " + std::to_string(rank) + " of " +
                     std::to_string(c.data));
        Optimized cut(c, GetParam(), {zero, rank, c.data});
        for (int step = 1; step <= kSteps; ++step) cut.update(state_of(step), step);

        for (const nn::Bucket& bucket : cut.table().buckets()) {
          expect_shard_of(cut, whole, bucket);
        }
      }
    }
  }
}

/// Other ranks' values are theirs to write.
TEST_P(ShardedAdamW, LeavesTheShardsOfOthersAlone) {
  const TableCase c = {.data = 3};
  Optimized cut(c, GetParam(), {1, 1, 3});
  const nn::ParamTable& table = cut.table();
  std::vector<char> before(table.value().bytes());
  std::memcpy(before.data(), table.value().raw(), before.size());

  cut.update(state_of(1), 1);

  const auto* after = static_cast<const char*>(table.value().raw());
  const auto element = static_cast<Dim>(size_of(table.value().dtype()));
  for (const nn::Bucket& bucket : table.buckets()) {
    const Dim first = table.shard_in_flat(bucket);
    const Dim last = first + table.shard_size(bucket);
    for (Dim i = bucket.begin * element; i < bucket.end * element; ++i) {
      if (i >= first * element && i < last * element) continue;
      ASSERT_EQ(after[i], before[static_cast<std::size_t>(i)]) << "byte " << i;
    }
    EXPECT_NE(std::memcmp(after + first * element, before.data() + first * element,
                          static_cast<std::size_t>((last - first) * element)),
              0);
  }
}

TEST_P(ShardedAdamW, SkippedStepsChangeNothing) {
  const TableCase c = {.data = 2};
  Optimized once(c, GetParam(), {2, 1, 2});
  Optimized twice(c, GetParam(), {2, 1, 2});
  once.update(state_of(1), 1);
  twice.update(state_of(1), 1);
  ops::StepState skipped = state_of(2);
  skipped.skip = 1;

  twice.update(skipped, 2);

  expect_equal_bits(twice.table().master(), once.table().master(), "master");
  expect_equal_bits(twice.table().value(), once.table().value(), "value");
  expect_equal_bits(twice.adamw().exp_avg(), once.adamw().exp_avg(), "exp_avg");
}

INSTANTIATE_TEST_SUITE_P(Compute, ShardedAdamW,
                         testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16),
                         [](const auto& chosen) { return std::string(name_of(chosen.param)); });

}  // namespace
}  // namespace hyperslab::optim
