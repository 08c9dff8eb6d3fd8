// SPDX-License-Identifier: Apache-2.0
// What run.deterministic promises bit for bit on a GPU, and that memory is what was planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "gpu/model_run.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/parity/parity.hpp"
#include "hyperslab/run/run.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab {
namespace {

using test::ModelRun;
using test::Overrides;
using test::world;
using test::operator+;

constexpr const char* kDeck = R"(
run: {name: state, seed: 9, device: cuda, deterministic: true}
model: {family: gpt2, layers: 3, width: 128, heads: 2, vocabulary: 1003, context: 128, dropout: 0.1}
data: {train: [synthetic]}
optimizer: {lr: 1.0e-3, clip_norm: 1.0}
schedule: {name: cosine, warmup_steps: 2}
train: {steps: 9, global_batch: 8, microbatch: 4, log_every: 100}
checkpoint: {every: 0}
)";
constexpr std::int64_t kSteps = 9;
constexpr std::int64_t kStop = 4;  // graphs replay before and after it

struct Model {
  const char* name;
  Overrides overrides;
  friend std::ostream& operator<<(std::ostream& out, const Model& model) {
    return out << model.name;
  }
};
const std::vector<Model> kModels = {
    {"gpt2_bf16", {"precision.compute=bf16"}},
    {"gpt2_bf16_without_dropout", {"precision.compute=bf16", "model.dropout=0"}},
    {"gpt2_fp32", {"precision.compute=fp32"}},
    {"gpt2_tf32_reference", {"precision.compute=tf32", "model.attention=reference"}},
    {"llama_bf16", {"model.family=llama", "model.kv_heads=1", "precision.compute=bf16"}},
    {"llama_fp16", {"model.family=llama", "precision.compute=fp16"}},
    {"experts_bf16",
     {"model.family=llama", "model.dropout=0", "experts.count=8", "experts.width=256",
      "experts.shared=1", "experts.bias_rate=0.01", "experts.z_weight=0.01",
      "precision.compute=bf16"}},
};
std::string name_of_model(const testing::TestParamInfo<Model>& info) { return info.param.name; }

class GpuModelBits : public test::GpuTest, public testing::WithParamInterface<Model> {};

/// Bits of every tensor of a checkpoint.
std::map<std::string, std::vector<char>> tensors_of(const io::CheckpointReader& reader) {
  std::map<std::string, std::vector<char>> out;
  for (const auto& [name, entry] : reader.tensors()) {
    const Shape& shape = entry.global_shape;
    Tensor tensor(Device::cpu, DType::f32, shape);
    const std::vector<io::SlabTarget> target = {
        {name, shape, Hyperslab::whole(shape), tensor.view()}};
    reader.read(target);
    const auto* begin = static_cast<const char*>(tensor.view().raw());
    out[name] = {begin, begin + tensor.view().bytes()};
  }
  return out;
}

/// `"loss":...` of every line of metrics.jsonl, as text.
std::vector<std::string> losses_of(const std::string& folder) {
  std::vector<std::string> out;
  std::ifstream file(folder + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find("\"loss\":");
    out.push_back(line.substr(begin, line.find(',', begin) - begin));
  }
  return out;
}

void train_in(const std::string& folder, const Overrides& overrides, std::int64_t stop_after) {
  const train::Config config =
      test::read_model(kDeck, overrides + Overrides{"run.directory=" + folder});
  run::RunOptions options;
  options.stop_after = stop_after;
  options.deck_yaml = deck::to_yaml(config);
  ASSERT_EQ(run::run_training(world(), config, options), ExitCode::ok);
}

TEST_P(GpuModelBits, AResumedRunIsTheUninterruptedOne) {
  const test::TempFolder folder;
  const std::string whole = folder.path() + "/whole";
  const std::string parts = folder.path() + "/parts";

  train_in(whole, GetParam().overrides, 0);
  train_in(parts, GetParam().overrides, kStop);
  const auto stopped = tensors_of(io::CheckpointReader(parts + "/checkpoints", kStop));
  train_in(parts, GetParam().overrides, 0);

  const io::CheckpointReader expected(whole + "/checkpoints", kSteps);
  const io::CheckpointReader found(parts + "/checkpoints", kSteps);
  EXPECT_EQ(found.meta().adam_step, kSteps);
  EXPECT_EQ(found.meta().loss_scale, expected.meta().loss_scale);
  EXPECT_TRUE(tensors_of(found) == tensors_of(expected)) << "other bits";
  EXPECT_FALSE(tensors_of(found) == stopped) << "nothing was trained after the stop";
  EXPECT_THAT(losses_of(whole), testing::SizeIs(kSteps));
  EXPECT_EQ(losses_of(parts), losses_of(whole));
}

parity::LayoutTrace trace(const Overrides& overrides) {
  return parity::trace_layout(world(), test::read_model(kDeck, overrides), kSteps);
}

/// A copy that later steps could change would not have the bits of a run that stops there.
TEST_P(GpuModelBits, CheckpointsBesideTrainingHoldTheirStep) {
  const test::TempFolder folder;
  const std::string beside = folder.path() + "/beside";
  const std::string within = folder.path() + "/within";
  const std::string stopped = folder.path() + "/stopped";
  const Overrides often =
      GetParam().overrides + Overrides{"checkpoint.every=2", "checkpoint.keep=all"};

  train_in(beside, often, 0);
  train_in(within, often + Overrides{"checkpoint.async=false"}, 0);
  train_in(stopped, GetParam().overrides, kStop);

  for (const std::int64_t step : {2, 4, 6, 8, 9}) {
    const io::CheckpointReader found(beside + "/checkpoints", step);
    EXPECT_TRUE(found.verify().empty()) << step;
    EXPECT_TRUE(tensors_of(found) ==
                tensors_of(io::CheckpointReader(within + "/checkpoints", step)))
        << "other bits in step " << step;
  }
  EXPECT_TRUE(tensors_of(io::CheckpointReader(beside + "/checkpoints", kStop)) ==
              tensors_of(io::CheckpointReader(stopped + "/checkpoints", kStop)));
}

TEST_P(GpuModelBits, RecomputationGivesTheSameGradients) {
  const Overrides& model = GetParam().overrides;
  const parity::LayoutTrace none = trace(model + Overrides{"memory.recompute=none"});
  const parity::LayoutTrace selective = trace(model + Overrides{"memory.recompute=selective"});
  const parity::LayoutTrace full = trace(model + Overrides{"memory.recompute=full"});
  const parity::LayoutTrace again = trace(model + Overrides{"memory.recompute=none"});

  ASSERT_FALSE(none.gradients.empty());
  const auto expect_bits = [&](const parity::LayoutTrace& other, const char* what) {
    EXPECT_EQ(other.losses, none.losses) << what;
    for (const auto& [name, expected] : none.gradients) {
      const std::vector<float>& found = other.gradients.at(name);
      ASSERT_EQ(found.size(), expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << name << ", " << what;
    }
  };
  expect_bits(again, "none again");
  expect_bits(selective, "selective");
  expect_bits(full, "full");
}

TEST_P(GpuModelBits, GraphsChangeNoBit) {
  const train::Config config = test::read_model(kDeck, GetParam().overrides);
  ModelRun enqueued(config, false, false);
  ModelRun replayed(config, false, true);

  for (std::int64_t step = 1; step <= kSteps; ++step) {
    EXPECT_EQ(replayed.step(step), enqueued.step(step)) << step;
  }
  EXPECT_EQ(replayed.trainer().state().replica_sums(), enqueued.trainer().state().replica_sums());
}

/// All bytes of what a checkpoint would hold.
std::vector<std::byte> state_of(ModelRun& run) {
  std::vector<std::byte> bytes;
  for (const io::Slab& slab : run.trainer().state().slabs()) {
    const auto* begin = static_cast<const std::byte*>(slab.data.raw());
    bytes.insert(bytes.end(), begin, begin + slab.data.bytes());
  }
  return bytes;
}

TEST_P(GpuModelBits, UpdatesBesideTheNextForwardPassChangeNoBit) {
  for (const char* setting :
       {"optimizer.name=adamw", "optimizer.name=muon", "parallel.zero=1", "parallel.zero=2"}) {
    SCOPED_TRACE(setting);
    const train::Config config = test::read_model(
        kDeck, GetParam().overrides + Overrides{setting, "optimizer.ema_decay=0.9"});
    ModelRun ordered(config, false, true, false);
    ModelRun overlapped(config, false, true, true);

    for (std::int64_t step = 1; step <= kSteps; ++step) {
      overlapped.enqueue(step);  // the next step is enqueued while this one is in progress
      if (step > 1) {
        EXPECT_EQ(overlapped.loss(step - 1), ordered.step(step - 1)) << step;
      }
    }
    EXPECT_EQ(overlapped.loss(kSteps), ordered.step(kSteps));
    EXPECT_EQ(overlapped.trainer().state().replica_sums(),
              ordered.trainer().state().replica_sums());
    EXPECT_TRUE(state_of(overlapped) == state_of(ordered)) << "other moments or averages";
  }
}

/// The highest byte written is in the last allocation, and none after it.
void expect_filled(const Arena& arena, std::size_t planned) {
  SCOPED_TRACE(arena.name());
  ASSERT_FALSE(arena.allocations().empty());
  EXPECT_EQ(arena.used_bytes(), planned);
  EXPECT_LE(arena.highest_touched(), planned);
  EXPECT_GT(arena.highest_touched(), arena.allocations().back().offset_bytes);
}

TEST_P(GpuModelBits, ArenasAreFilledAsPlanned) {
  for (const char* recompute : {"none", "selective", "full"}) {
    SCOPED_TRACE(recompute);
    ModelRun run(
        test::read_model(
            kDeck, GetParam().overrides + Overrides{std::string("memory.recompute=") + recompute}),
        true);
    for (std::int64_t step = 1; step <= 3; ++step) run.step(step);

    const model::Arenas& arenas = run.trainer().arenas();
    expect_filled(arenas.parameters, run.plan().parameters);
    expect_filled(arenas.gradients, run.plan().gradients);
    expect_filled(arenas.optimizer, run.plan().optimizer);
    expect_filled(arenas.activations, run.plan().activations);
    expect_filled(arenas.scratch, run.plan().scratch);
    EXPECT_EQ(run.trainer().inspection().memory_plan().workspace, run.plan().workspace);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GpuModelBits, testing::ValuesIn(kModels), name_of_model);

// 124 million parameters.
constexpr const char* kLargeDeck = R"(
run: {name: memory, seed: 9, device: cuda, deterministic: true}
model: {family: gpt2, layers: 12, width: 768, heads: 12, vocabulary: 50257, context: 1024}
data: {train: [synthetic]}
train: {steps: 3, global_batch: 32, microbatch: 16}
)";
constexpr std::size_t kLibraryBytes = std::size_t{32} << 20;  // that cuBLASLt is given, beside all
constexpr double kShare = 0.02;

class GpuModelMemory : public test::GpuTest, public testing::WithParamInterface<Model> {};

std::size_t bytes_in_use() {
  const DeviceMemory memory = device_memory(Device::cuda);
  return memory.total - memory.free;
}

/// Bytes in use after three steps, the third of which replays graphs.
std::size_t bytes_after_steps(ModelRun& run) {
  for (std::int64_t step = 1; step <= 3; ++step) run.step(step);
  return bytes_in_use();
}

TEST_P(GpuModelMemory, GrowsByWhatWasPlanned) {
  const train::Config config = test::read_model(kLargeDeck, GetParam().overrides);
  {
    ModelRun first(config);  // brings the context and the libraries' kernels, which stay
    (void)bytes_after_steps(first);
  }
  const std::size_t before = bytes_in_use();
  ModelRun run(config);
  const std::size_t after = bytes_after_steps(run);

  ASSERT_GT(after, before);
  const auto grown = static_cast<double>(after - before);
  const auto planned = static_cast<double>(run.plan().total() + kLibraryBytes);
  std::printf("%s: %.3f GiB planned, %.3f GiB measured (%+.2f %%)\n", GetParam().name,
              planned * 0x1p-30, grown * 0x1p-30, 100 * (grown / planned - 1));
  EXPECT_NEAR(grown / planned, 1, kShare);
}

const std::vector<Model> kLarge = {
    {"bf16", {"precision.compute=bf16"}},
    {"bf16_selective", {"precision.compute=bf16", "memory.recompute=selective"}},
    {"bf16_full", {"precision.compute=bf16", "memory.recompute=full"}},
    {"bf16_pieces",
     {"precision.compute=bf16", "memory.recompute=full", "memory.mlp_rows=4096",
      "memory.loss_rows=2048"}},
    {"fp32_selective",
     {"precision.compute=fp32", "memory.recompute=selective", "train.microbatch=4",
      "train.global_batch=8"}},
    {"llama_bf16", {"model.family=llama", "model.kv_heads=4", "precision.compute=bf16"}},
};
INSTANTIATE_TEST_SUITE_P(Models, GpuModelMemory, testing::ValuesIn(kLarge), name_of_model);

}  // namespace
}  // namespace hyperslab
