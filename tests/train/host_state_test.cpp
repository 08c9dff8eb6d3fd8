// SPDX-License-Identifier: Apache-2.0
// State and inputs of blocks that rest on the host give the bits of those on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "support/mpi_world.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::world;
using Overrides = std::vector<std::string>;
using Slabs = std::map<std::string, std::vector<unsigned char>>;  ///< by name and part

constexpr int kHostSteps = 4;

struct Result {
  std::vector<double> losses;
  Slabs slabs;
  model::MemoryPlan memory;
};

Slabs slabs_of(train::Trainer& trainer) {
  Slabs slabs;
  for (const io::Slab& slab : trainer.state().slabs()) {
    const auto* bytes = static_cast<const unsigned char*>(slab.data.raw());
    slabs[slab.tensor + slab.part.offset.str()] = {bytes, bytes + slab.data.bytes()};
  }
  return slabs;
}

/// `key`: of the deck, and its value.
Result result_of(Overrides overrides, const std::string& key) {
  overrides.push_back(key);
  const train::Config config = test::small_config(overrides, world().size());
  const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
  train::TrainerOptions options;
  options.compute = config.precision.compute == Precision::bf16 ? DType::bf16 : DType::f32;
  options.canary = true;
  test::SmallRun run(config, mesh, world().rank(), options);
  Result result;
  for (int step = 1; step <= kHostSteps; ++step) result.losses.push_back(run.step(step));
  result.slabs = slabs_of(run.trainer());
  result.memory = run.plan().memory;
  const model::Arenas& arenas = run.trainer().arenas();
  EXPECT_EQ(arenas.host.highest_touched(), result.memory.host);
  EXPECT_EQ(run.trainer().inspection().memory_plan().host, result.memory.host);
  return result;
}

class HostState : public testing::TestWithParam<Overrides> {};

TEST_P(HostState, GivesTheBitsOfStateOnTheDevice) {
  Overrides overrides = GetParam();
  overrides.push_back("parallel.data=" + std::to_string(world().size()));
  overrides.push_back("parallel.bucket_mib=0.01");
  if (std::ranges::find(overrides, "precision.gradients=bf16") != overrides.end()) {
    overrides.push_back("train.microbatch=" + std::to_string(12 / world().size()));
  }
  const Result host = result_of(overrides, "memory.optimizer=host");
  std::erase_if(overrides, [](const std::string& o) { return o.starts_with("memory.resident"); });
  const Result device = result_of(overrides, "memory.optimizer=device");
  EXPECT_EQ(host.losses, device.losses);
  EXPECT_EQ(host.slabs, device.slabs);
  EXPECT_EQ(device.memory.host, 0U);
  EXPECT_GT(host.memory.host, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, HostState,
    testing::Values(Overrides{}, Overrides{"optimizer.name=sgd"},
                    Overrides{"precision.compute=bf16"},
                    Overrides{"precision.compute=bf16", "precision.gradients=bf16"},
                    Overrides{"precision.compute=bf16", "parallel.zero=1"},
                    Overrides{"parallel.zero=2", "train.microbatch=1"},
                    Overrides{"precision.compute=bf16", "parallel.zero=3", "model.layers=8"},
                    Overrides{"parallel.zero=3", "model.layers=8"},
                    Overrides{"optimizer.state=bf16", "optimizer.ema_decay=0.9"},
                    Overrides{"optimizer.ema_decay=0.9", "precision.compute=bf16",
                              "parallel.zero=1", "memory.recompute=full"},
                    Overrides{"memory.resident_gib=1", "optimizer.ema_decay=0.9"},
                    Overrides{"quantization.weights=int8", "precision.compute=bf16"}));

class HostInputs : public testing::TestWithParam<Overrides> {};

TEST_P(HostInputs, GiveTheBitsOfInputsOnTheDevice) {
  Overrides overrides = GetParam();
  overrides.emplace_back("memory.recompute=full");
  overrides.emplace_back("model.layers=6");
  const auto asks = [&](const std::string& key) {
    return std::ranges::any_of(overrides, [&](const auto& o) { return o.starts_with(key); });
  };
  if (!asks("parallel.pipeline")) {
    overrides.push_back("parallel.data=" + std::to_string(world().size()));
  } else if (world().size() != 2) {
    return;
  }
  Overrides on_device = overrides;
  std::erase_if(on_device, [](const std::string& o) { return o.starts_with("memory.host"); });
  const Result host = result_of(overrides, "memory.activations=host");
  const Result device = result_of(on_device, "memory.activations=device");
  EXPECT_EQ(host.losses, device.losses);
  EXPECT_EQ(host.slabs, device.slabs);
  // Two rooms take turns for the inputs that rest on the host.
  constexpr std::size_t kAlignments = 1024;
  const std::size_t inputs = host.memory.host;
  EXPECT_GT(inputs, kAlignments);
  EXPECT_LE(host.memory.activations + inputs, device.memory.activations + kAlignments);
  EXPECT_GT(host.memory.scratch, device.memory.scratch);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, HostInputs,
    testing::Values(Overrides{}, Overrides{"memory.host_layers=4"},
                    Overrides{"memory.recompute_layers=3", "train.microbatch=1"},
                    Overrides{"precision.compute=bf16", "parallel.zero=3"},
                    Overrides{"model.norm_place=post"}, Overrides{"model.parallel_block=true"},
                    Overrides{"parallel.pipeline=2", "train.microbatch=1"},
                    Overrides{"parallel.pipeline=2", "parallel.schedule=interleaved",
                              "parallel.virtual_stages=2", "train.microbatch=1"}));

/// Chunks that stay are newer than the host's until something reads them; a save in between, and
/// one at the end, find what a run without them has.
TEST(HostState, ThatStaysOnTheDeviceIsTakenBackWhenItIsRead) {
  const Overrides moving = {"precision.compute=bf16", "memory.optimizer=host"};
  Overrides staying = moving;
  staying.emplace_back("memory.resident_gib=1");
  const auto slabs_of_run = [](const Overrides& overrides) {
    const train::Config config = test::small_config(overrides, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
    train::TrainerOptions options;
    options.compute = DType::bf16;
    test::SmallRun run(config, mesh, 0, options);
    std::vector<Slabs> found;
    for (int step = 1; step <= kHostSteps; ++step) {
      run.step(step);
      if (step % 2 == 0) found.push_back(slabs_of(run.trainer()));
    }
    return found;
  };
  EXPECT_EQ(slabs_of_run(staying), slabs_of_run(moving));
}

/// Norms of weights, for one, are of masters.
TEST(HostState, IsCompleteWhenValuesAre) {
  const auto masters_of = [](const Overrides& overrides) {
    const train::Config config = test::small_config(overrides, 1);
    const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0, config.groups());
    test::SmallRun run(config, mesh, 0);
    run.step(1);
    run.trainer().state().complete_values();
    const View masters = run.trainer().stage().params().trained().master().data;
    const auto numbers = masters.span<float>();
    return std::vector<float>(numbers.begin(), numbers.end());
  };
  const std::vector<float> device = masters_of({});
  EXPECT_EQ(masters_of({"memory.optimizer=host"}), device);
  EXPECT_EQ(masters_of({"memory.optimizer=host", "memory.resident_gib=1"}), device);
}

/// Slots are no larger than what passes through them.
TEST(HostState, ThatStaysTakesWhatItSaves) {
  const auto plan_of = [](const Overrides& more) {
    Overrides overrides = {"parallel.data=4", "parallel.zero=1", "parallel.bucket_mib=0.01",
                           "train.microbatch=1", "model.layers=8"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    train::TrainerOptions options;
    options.device = Device::cuda;
    return plan::make_plan(test::small_config(overrides, 4), options, 0);
  };
  const auto moved_bytes = [](const plan::Plan& plan) {
    std::size_t bytes = 0;
    for (const sharding::NamedMovement& moved : plan.movements) {
      if (moved.what == "state") bytes += moved.steps.front().bytes;
    }
    return bytes;
  };
  const plan::Plan device = plan_of({});
  const plan::Plan moving = plan_of({"memory.optimizer=host"});
  const plan::Plan staying = plan_of({"memory.optimizer=host", "memory.resident_gib=1"});
  EXPECT_LT(moving.memory.total(), device.memory.total());
  EXPECT_GT(moved_bytes(moving), 0U);
  EXPECT_EQ(moved_bytes(staying), 0U);
  // Allocations are more and smaller ones, each aligned to 256 bytes.
  EXPECT_LT(staying.memory.total(), device.memory.total() + (std::size_t{64} << 10U));
}

/// Arenas align every allocation to 256 bytes.
TEST(HostState, TakesTwelveBytesAParameterOfTheHost) {
  const Overrides overrides = {"parallel.data=" + std::to_string(world().size()),
                               "precision.compute=bf16"};
  const model::MemoryPlan host = result_of(overrides, "memory.optimizer=host").memory;
  const model::MemoryPlan device = result_of(overrides, "memory.optimizer=device").memory;
  constexpr double kAllocations = 9 * 256;
  const double elements = static_cast<double>(host.host) / 12;
  EXPECT_NEAR(static_cast<double>(device.parameters - host.parameters), 4 * elements, kAllocations);
  // Moments went, and this model's only chunk came.
  EXPECT_NEAR(static_cast<double>(host.optimizer) - static_cast<double>(device.optimizer),
              (12 - 8) * elements, kAllocations);
}

}  // namespace
}  // namespace hyperslab
