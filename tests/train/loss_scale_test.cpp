// SPDX-License-Identifier: Apache-2.0
// The loss scale of fp16 over a checkpoint, with the arithmetic of the CPU.
#include <gtest/gtest.h>

#include "support/mpi_world.hpp"
#include "support/temp_folder.hpp"
#include "train/small_run.hpp"

namespace hyperslab::train {
namespace {

Config fp16_config() {
  Config config = test::small_config({}, 1);
  config.precision.compute = Precision::fp16;  // which decks allow on a GPU only
  return config;
}

/// What a trainer goes on with after a checkpoint of such a run.
ops::StepState loaded(const io::CheckpointMeta& meta) {
  const Config config = fp16_config();
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  test::SmallRun run(config, mesh, 0);
  const test::TempFolder folder;
  io::save_checkpoint(test::world(), folder.path(), meta, run.trainer().state().slabs());
  run.trainer().state().load(io::CheckpointReader(folder.path()));
  return run.trainer().state().step_state();
}

/// A checkpoint of step 2 of a run with `compute`.
io::CheckpointMeta trained_in(Precision compute) {
  Config config = fp16_config();
  config.precision.compute = compute;
  io::CheckpointMeta meta;
  meta.step = 2;
  meta.samples_seen = 24;
  meta.scales_loss = config.precision.compute == Precision::fp16;
  return meta;
}

TEST(LossScale, GoesOnWhereverItStood) {
  for (const double scale : {0.125, 1.0, 2048.0}) {
    io::CheckpointMeta meta = trained_in(Precision::fp16);
    meta.loss_scale = scale;
    meta.good_steps = 7;

    const ops::StepState state = loaded(meta);

    EXPECT_EQ(state.loss_scale, static_cast<float>(scale));
    EXPECT_EQ(state.good_steps, 7);
  }
}

TEST(LossScale, ARunThatDidNotScaleHandsOnNone) {
  io::CheckpointMeta unscaled = trained_in(Precision::bf16);
  unscaled.good_steps = 7;  // left by earlier programs after fp16
  io::CheckpointMeta import = trained_in(Precision::fp16);
  import.samples_seen = 0;
  import.scales_loss = false;

  EXPECT_EQ(loaded(unscaled).loss_scale, kFirstLossScale);
  EXPECT_EQ(loaded(unscaled).good_steps, 0);
  EXPECT_EQ(loaded(import).loss_scale, kFirstLossScale);
}

/// The weights after a stop and a start are those of one run, at a scale of 1, too.
TEST(LossScale, AResumedRunIsTheUninterruptedOne) {
  const Config config = fp16_config();
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  const test::TempFolder folder;
  io::CheckpointMeta meta = trained_in(Precision::fp16);
  test::SmallRun whole(config, mesh, 0);
  io::save_checkpoint(test::world(), folder.path(), meta, whole.trainer().state().slabs());
  whole.trainer().state().load(io::CheckpointReader(folder.path()));  // with a scale of 1
  whole.step(1);
  whole.step(2);
  whole.trainer().state().fill_meta(meta);
  ASSERT_TRUE(meta.scales_loss);
  ASSERT_EQ(meta.loss_scale, 1);
  ASSERT_EQ(meta.good_steps, 2);
  io::save_checkpoint(test::world(), folder.path(), meta, whole.trainer().state().slabs());
  test::SmallRun resumed(config, mesh, 0);
  resumed.trainer().state().load(io::CheckpointReader(folder.path()));

  EXPECT_EQ(whole.step(3), resumed.step(3));
  EXPECT_EQ(whole.step(4), resumed.step(4));
  EXPECT_EQ(resumed.trainer().state().step_state().loss_scale,
            whole.trainer().state().step_state().loss_scale);
  EXPECT_EQ(resumed.trainer().state().step_state().good_steps, 4);
}

}  // namespace
}  // namespace hyperslab::train
