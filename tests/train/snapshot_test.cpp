// SPDX-License-Identifier: Apache-2.0
// Copies of the state that later steps do not change.
#include "hyperslab/train/snapshot.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "hyperslab/core/error.hpp"
#include "small_run.hpp"
#include "staging.hpp"

namespace hyperslab::train {
namespace {

using test::small_config;
using test::SmallRun;

bool equal_bits(CView a, CView b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

TEST(Snapshot, HoldsTheStateOfItsStepWhileTheNextStepsRun) {
  const Config config = small_config({}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun run(config, mesh, 0);
  Trainer& trainer = run.trainer();
  SnapshotBuffer buffer(Device::cpu, trainer.state().checkpoint_bytes());
  Context ctx(Device::cpu);
  for (std::int64_t step = 1; step <= 6; step += 2) {
    run.step(step);
    std::vector<io::Slab> kept = trainer.state().slabs();
    copy_to_host(ctx, kept);

    const Snapshot snapshot = trainer.state().snapshot(buffer);
    run.step(step + 1);

    EXPECT_TRUE(snapshot.ready.is_complete()) << "the update waited for it";
    ASSERT_EQ(snapshot.slabs.size(), kept.size());
    const std::vector<io::Slab> now = trainer.state().slabs();
    bool has_changed = false;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(snapshot.slabs[i].tensor, kept[i].tensor);
      EXPECT_TRUE(equal_bits(snapshot.slabs[i].data, kept[i].data)) << kept[i].tensor;
      has_changed = has_changed || !equal_bits(now[i].data, kept[i].data);
    }
    EXPECT_TRUE(has_changed) << "a step that changes nothing tests nothing";
  }
}

TEST(Snapshot, IsRefusedIfItsBufferIsTooSmall) {
  const Config config = small_config({}, 1);
  const mesh::Mesh mesh = mesh::Mesh::plan(config.parallel, 0);
  SmallRun run(config, mesh, 0);
  SnapshotBuffer buffer(Device::cpu, 256);

  EXPECT_THROW((void)run.trainer().state().snapshot(buffer), Error);
}

}  // namespace
}  // namespace hyperslab::train
