// SPDX-License-Identifier: Apache-2.0
// What the ranks of a layout hold after some steps: memory as planned, replicas with equal bits,
// and slabs that cover every tensor exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <sstream>

#include "support/mpi_world.hpp"
#include "train/layouts.hpp"
#include "train/small_run.hpp"

namespace hyperslab {
namespace {

using test::Case;
using test::world;

constexpr std::size_t kLayouts = 20;
constexpr int kLayoutSteps = 3;

/// "128 24", one-dimensional tensors as a row.
std::string two(const Shape& shape, Dim missing) {
  return shape.rank() == 2 ? fmt::format("{} {}", shape[0], shape[1])
                           : fmt::format("{} {}", missing, shape[0]);
}

/// Lines "tensor rows columns  row column  rows columns" of this rank's slabs.
std::string text_of(const std::vector<io::Slab>& slabs) {
  std::string text;
  for (const io::Slab& slab : slabs) {
    text += fmt::format("{} {} {} {}\n", slab.tensor, two(slab.global_shape, 1),
                        two(slab.part.offset, 0), two(slab.part.count, 1));
  }
  return text;
}

/// How often every element of a tensor was given.
struct Covered {
  Dim rows = 0;
  Dim columns = 0;
  std::vector<int> times;
};

void cover(std::map<std::string, Covered>& tensors, const std::string& text) {
  std::istringstream lines(text);
  std::string name;
  Dim rows = 0;
  Dim columns = 0;
  while (lines >> name >> rows >> columns) {
    Dim row = 0;
    Dim column = 0;
    Dim height = 0;
    Dim width = 0;
    lines >> row >> column >> height >> width;
    Covered& tensor = tensors[name];
    if (tensor.times.empty()) {
      tensor = {rows, columns, std::vector<int>(static_cast<std::size_t>(rows * columns), 0)};
    }
    ASSERT_EQ(tensor.rows, rows) << name;
    ASSERT_EQ(tensor.columns, columns) << name;
    ASSERT_LE(row + height, rows) << name;
    ASSERT_LE(column + width, columns) << name;
    for (Dim i = row; i < row + height; ++i) {
      for (Dim j = column; j < column + width; ++j) {
        ++tensor.times[static_cast<std::size_t>(i * columns + j)];
      }
    }
  }
}

/// Of the model on one rank: "model/<name>" and both moments, with their numbers of elements.
std::map<std::string, Dim> tensors_of(const Case& layout) {
  std::map<std::string, Dim> out;
  const train::Config one = test::read_layout(layout.model, {}, 1);
  for (const auto& [name, shape] : plan::make_plan(one, {}, 0).parameters) {
    for (const char* prefix : {"model/", "optimizer/exp_avg/", "optimizer/exp_avg_sq/"}) {
      out[prefix + name] = shape.numel();
    }
  }
  return out;
}

void expect_slabs_cover(const Case& layout, train::Trainer& trainer) {
  const std::vector<std::string> all = world().gather(text_of(trainer.state().slabs()));
  if (world().rank() != 0) return;
  std::map<std::string, Covered> covered;
  for (const std::string& text : all) cover(covered, text);
  const std::map<std::string, Dim> expected = tensors_of(layout);
  EXPECT_EQ(covered.size(), expected.size());
  for (const auto& [name, elements] : expected) {
    const std::vector<int>& times = covered[name].times;
    EXPECT_EQ(std::ssize(times), elements) << name;
    EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; })) << name;
  }
}

/// The same part of a parameter has the same bits wherever it is held.
void expect_equal_replicas(const train::Trainer& trainer) {
  std::string mine;
  for (const param::Param& param : trainer.stage().params().params()) {
    const auto values = param.value.span<float>().first(static_cast<std::size_t>(param.numel()));
    std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over the bits
    for (const float value : values) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3U;
    }
    mine += fmt::format("{}[{}+{}] {}\n", param.name, param.part.offset.str(),
                        param.part.count.str(), hash);
  }
  std::map<std::string, std::string> first;
  for (const std::string& text : world().gather(mine)) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.rfind(' ');
      const auto [at, is_new] = first.emplace(line.substr(0, space), line.substr(space));
      EXPECT_EQ(at->second, line.substr(space)) << at->first;
    }
  }
}

void expect_planned_memory(test::SmallRun& run) {
  const model::Arenas& arenas = run.trainer().arenas();
  const model::MemoryPlan& plan = run.plan().memory;
  EXPECT_EQ(arenas.parameters.highest_touched(), plan.parameters);
  EXPECT_EQ(arenas.gradients.highest_touched(), plan.gradients);
  EXPECT_EQ(arenas.optimizer.highest_touched(), plan.optimizer);
  EXPECT_EQ(arenas.activations.highest_touched(), plan.activations);
  EXPECT_EQ(arenas.scratch.highest_touched(), plan.scratch);
  EXPECT_EQ(run.trainer().inspection().memory_plan().workspace, plan.workspace);
}

class LayoutState : public testing::TestWithParam<const char*> {};

TEST_P(LayoutState, IsWhatWasPlannedAndCoversEveryTensorOnce) {
  train::TrainerOptions options;
  options.canary = true;
  for (Case layout : test::draw_layouts(world().size(), kLayouts)) {
    layout.model.emplace_back(GetParam());
    SCOPED_TRACE(layout.str());
    const train::Config config = test::read_layout(layout.model, layout.layout, world().size());
    const mesh::Mesh mesh(world(), Device::cpu, config.parallel, config.groups());
    test::SmallRun run(config, mesh, world().rank(), options);
    for (int step = 1; step <= kLayoutSteps; ++step) run.step(step);
    run.trainer().forward_backward(
        {.step = kLayoutSteps + 1});  // after the gathers of the last step

    expect_planned_memory(run);
    expect_slabs_cover(layout, run.trainer());
    expect_equal_replicas(run.trainer());
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, LayoutState,
                         testing::Values("optimizer.name=adamw", "optimizer.name=muon"));

}  // namespace
}  // namespace hyperslab
