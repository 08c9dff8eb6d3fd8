// SPDX-License-Identifier: Apache-2.0
// Weights whose FP8 values are kept for a step (precision.fp8_cache_weights) or gathered
// (precision.fp8_param_gather): nothing may differ from a run that rounds values for every product.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/mpi_world.hpp"
#include "support/tensors.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::SmallRun;
using test::world;
using Overrides = std::vector<std::string>;

constexpr int kFp8Steps = 4;
// 12 samples of 32 tokens, in microbatches of 2: no product has fewer than 64 rows.
const Overrides kRounds = {"model.width=64", "model.ffn_width=128", "model.context=32",
                           "precision.fp8_min_width=32"};

struct Trace {
  std::vector<double> losses;
  std::vector<double> evaluated;  ///< after each step, before the next one rounds again
  std::vector<std::vector<double>> values;
  std::int64_t parameter_bytes = 0;
  std::int64_t shard_elements = 0;
};

/// `more`: a key that keeps FP8 values, or nothing.
Trace trace_of(const Overrides& overrides, const Overrides& more) {
  Overrides all = kRounds;
  all.insert(all.end(), overrides.begin(), overrides.end());
  all.insert(all.end(), more.begin(), more.end());
  const train::Config config = test::small_config(all, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  if (config.precision.compute == Precision::bf16) options.compute = DType::bf16;
  SmallRun run(config, mesh, world().rank(), options);
  const auto tokens = io::open_tokens({"synthetic"}, io::RawIds::uint16, 67, 11);
  const io::TokenSamples samples(*tokens, io::Sampling::blocks, 32, 11);
  Trace trace;
  for (int step = 1; step <= kFp8Steps; ++step) {
    trace.losses.push_back(run.step(step));
    trace.evaluated.push_back(run.trainer().evaluate(samples, 12, world()).loss());
  }
  const param::ParamStore& params = run.trainer().stage().params();
  trace.shard_elements = params.trained().shard_size();
  if (!params.trained().value().sharded) {
    for (const param::Param& param : params.params()) {
      trace.values.push_back(test::to_doubles(param.value));
    }
  }
  trace.parameter_bytes = static_cast<std::int64_t>(run.plan().memory.parameters);
  return trace;
}

/// True if a layout is of several ranks as the world is.
bool fits_world(const Overrides& overrides) {
  const bool is_parallel = std::ranges::any_of(overrides, [](const std::string& word) {
    return word.starts_with("parallel.") && word.ends_with("=2") &&
           !word.starts_with("parallel.zero=");
  });
  return is_parallel == (world().size() == 2);
}

void expect_same_bits(const Overrides& overrides, const std::string& key) {
  const Trace rounded = trace_of(overrides, {});
  const Trace kept = trace_of(overrides, {key + "=true"});

  const std::int64_t more = kept.parameter_bytes - rounded.parameter_bytes;
  const bool in_rooms = std::ranges::find(overrides, "parallel.zero=3") != overrides.end();
  if (in_rooms) {  // a byte for each element of the shards, and one less in the rooms
    EXPECT_LT(more, kept.shard_elements);
  } else {
    EXPECT_GT(more, 0);
  }
  EXPECT_NE(kept.losses.front(), kept.losses.back()) << "the weights did not change";
  EXPECT_EQ(kept.losses, rounded.losses);
  EXPECT_EQ(kept.evaluated, rounded.evaluated);
  if (!in_rooms) {  // other buckets have other shards
    EXPECT_TRUE(kept.values == rounded.values);
  }
}

class Fp8WeightsOfAStep : public testing::TestWithParam<Overrides> {};

TEST_P(Fp8WeightsOfAStep, HaveTheSameBits) {
  if (!fits_world(GetParam())) GTEST_SKIP() << "a layout of another number of ranks";
  expect_same_bits(GetParam(), "precision.fp8_cache_weights");
}

class GatheredFp8Weights : public testing::TestWithParam<Overrides> {};

TEST_P(GatheredFp8Weights, HaveTheSameBits) {
  if (!fits_world(GetParam())) GTEST_SKIP() << "a layout of another number of ranks";
  Overrides all = GetParam();
  // Other buckets: the norm of gradients is summed in another order.
  all.insert(all.end(),
             {"precision.gemm=fp8_tensor", "precision.compute=bf16", "optimizer.clip_norm=0"});
  expect_same_bits(all, "precision.fp8_param_gather");
}

/// Every piece of a feed-forward network has a scale of its own.
TEST(Fp8Pieces, TrainAsTheWholeDoes) {
  if (world().size() > 1) GTEST_SKIP() << "one rank is enough";
  for (const char* gemm : {"fp8_tensor", "fp8_row", "fp8_block"}) {
    const Overrides whole = {std::string("precision.gemm=") + gemm, "train.microbatch=12",
                             "memory.recompute=full"};
    const Trace expected = trace_of(whole, {});
    const Trace found = trace_of(whole, {"memory.mlp_rows=256"});
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-3 * expected.losses[i]) << gemm;
    }
  }
}

/// Such products multiply by values.
TEST(GatheredFp8Values, AreRefusedForProductsOfFewRows) {
  Overrides all = kRounds;
  all.insert(all.end(), {"precision.gemm=fp8_tensor", "precision.compute=bf16", "parallel.zero=1",
                         "precision.fp8_param_gather=true", "train.microbatch=1"});
  const train::Config config = test::small_config(all, 1);
  train::TrainerOptions options;
  options.compute = DType::bf16;
  EXPECT_NO_THROW((void)plan::make_plan(test::small_config({}, 1), {}, 0));
  try {
    (void)plan::make_plan(config, options, 0);
    FAIL() << "32 rows were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("a microbatch has 32 tokens"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GatheredFp8Weights,
    testing::Values(
        Overrides{"parallel.zero=1"},
        Overrides{"parallel.zero=1", "train.microbatch=12", "memory.recompute=full",
                  "memory.mlp_rows=256"},
        Overrides{"parallel.zero=2", "model.family=llama"},
        Overrides{"parallel.zero=1", "parallel.data=2"},
        Overrides{"parallel.zero=2", "parallel.data=2"},
        Overrides{"parallel.zero=1", "parallel.data=2", "parallel.bucket_mib=1"},
        Overrides{"parallel.zero=3", "parallel.data=2", "parallel.bucket_mib=0.01",
                  "model.layers=6", "model.width=128", "model.ffn_width=256"},
        Overrides{"parallel.zero=3", "parallel.data=2", "parallel.bucket_mib=0.01",
                  "model.family=llama", "memory.recompute=full", "optimizer.ema_decay=0.9"},
        Overrides{"parallel.zero=3", "parallel.data=2", "parallel.bucket_mib=0.01",
                  "optimizer.name=muon", "model.tie_embeddings=false"},
        Overrides{"parallel.zero=3", "parallel.data=2", "parallel.bucket_mib=0.01",
                  "train.microbatch=6", "memory.recompute=full", "memory.mlp_rows=256"},
        Overrides{"parallel.zero=1", "parallel.data=2", "optimizer.name=muon"},
        Overrides{"parallel.zero=1", "parallel.data=2", "precision.fp8_keep_first=1"},
        Overrides{"parallel.zero=1", "parallel.data=2", "model.family=llama",
                  "memory.recompute=full"},
        Overrides{"parallel.zero=1", "parallel.tensor=2"},
        Overrides{"parallel.zero=1", "parallel.pipeline=2", "parallel.schedule=zero_bubble"}));

INSTANTIATE_TEST_SUITE_P(
    Runs, Fp8WeightsOfAStep,
    testing::Values(
        Overrides{"precision.gemm=fp8_tensor"}, Overrides{"precision.gemm=fp8_row"},
        Overrides{"precision.gemm=fp8_block"},
        Overrides{"precision.gemm=fp8_tensor", "model.family=llama", "memory.recompute=selective"},
        Overrides{"precision.gemm=fp8_row", "memory.recompute=full"},
        Overrides{"precision.gemm=fp8_tensor", "model.family=llama", "train.microbatch=12",
                  "memory.recompute=full", "memory.mlp_rows=256"},
        Overrides{"precision.gemm=fp8_tensor", "adapter.rank=4"},
        Overrides{"precision.gemm=fp8_tensor", "precision.fp8_keep_first=1"},
        Overrides{"precision.gemm=fp8_tensor", "parallel.data=2", "parallel.zero=1"},
        Overrides{"precision.gemm=fp8_row", "parallel.data=2", "parallel.zero=2"},
        Overrides{"precision.gemm=fp8_tensor", "parallel.tensor=2"},
        Overrides{"precision.gemm=fp8_block", "parallel.tensor=2", "parallel.sequence=true"},
        Overrides{"precision.gemm=fp8_tensor", "parallel.pipeline=2",
                  "parallel.schedule=zero_bubble"}));

}  // namespace
}  // namespace hyperslab
