// SPDX-License-Identifier: Apache-2.0
// The whole product of axes, schedules, sharding, families and batches against one rank; slow.
// HYPERSLAB_TEST_PART=k/n runs every n-th layout from the k-th (from 0).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "hyperslab/parity/parity.hpp"
#include "support/mpi_world.hpp"
#include "train/layouts.hpp"

namespace hyperslab {
namespace {

using test::Case;
using test::set;
using test::world;

constexpr int kSteps = 2;

struct Axes {
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  int context = 1;
};

std::vector<Axes> axes_of(int ranks) {
  std::vector<Axes> out;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int pipeline = 1; pipeline <= ranks; ++pipeline) {
      for (const int context : {1, 2}) {
        const int others = tensor * pipeline * context;
        if (ranks % others == 0) out.push_back({ranks / others, pipeline, tensor, context});
      }
    }
  }
  return out;
}

/// Schedules with their virtual stages; a pipeline of one stage has one order of each kind.
std::vector<std::pair<const char*, int>> schedules(const Axes& axes) {
  if (axes.pipeline == 1) return {{"gpipe", 1}, {"1f1b", 1}, {"zero_bubble", 1}};
  return {{"gpipe", 1},       {"1f1b", 1},        {"zero_bubble", 1},
          {"interleaved", 1}, {"interleaved", 2}, {"interleaved", 3}};
}

/// Every legal layout of the ranks for one model.
std::vector<Case> product(const std::vector<std::string>& model) {
  std::vector<Case> out;
  for (const Axes& axes : axes_of(world().size())) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      Case base;
      base.model = model;
      set(base.model, "train.microbatch", 1);
      set(base.model, "train.global_batch", microbatches * axes.data);
      set(base.layout, "parallel.data", axes.data);
      set(base.layout, "parallel.pipeline", axes.pipeline);
      set(base.layout, "parallel.tensor", axes.tensor);
      set(base.layout, "parallel.context", axes.context);
      set(base.layout, "parallel.bucket_mib", 0.01);
      for (const bool sequence : {false, true}) {
        for (const auto& [schedule, virtual_stages] : schedules(axes)) {
          for (const int zero : {0, 1, 2}) {
            Case next = base;
            set(next.layout, "parallel.sequence", sequence);
            set(next.layout, "parallel.schedule", schedule);
            set(next.layout, "parallel.virtual_stages", virtual_stages);
            set(next.layout, "parallel.zero", zero);
            if (test::is_legal(next, world().size())) out.push_back(next);
          }
        }
      }
    }
  }
  return out;
}

/// Which layouts this start runs.
struct Share {
  std::size_t first = 0;
  std::size_t stride = 1;
  Share() {
    const char* text = std::getenv("HYPERSLAB_TEST_PART");
    if (text != nullptr && std::sscanf(text, "%zu/%zu", &first, &stride) != 2) {
      throw Error(ExitCode::usage,
                  std::string("HYPERSLAB_TEST_PART is ") + text + ", expected k/n");
    }
  }
};

using Model = std::tuple<const char*, bool, int>;  // family, tied, key-value heads

class Product : public testing::TestWithParam<Model> {};

TEST_P(Product, AgreesWithOneRankTensorByTensor) {
  const auto& [family, tied, kv_heads] = GetParam();
  std::vector<std::string> model;
  set(model, "model.family", family);
  set(model, "model.tie_embeddings", tied);
  set(model, "model.kv_heads", kv_heads);
  const std::vector<Case> all = product(model);
  const Share share;
  std::vector<std::string> last;
  parity::LayoutTrace expected;
  for (std::size_t i = share.first; i < all.size(); i += share.stride) {
    const Case& layout = all[i];
    if (layout.model != last) {  // neighbours in the product share the run of one rank
      expected = parity::trace_layout(world(), test::read_layout(layout.model, {}, 1), kSteps);
      last = layout.model;
    }
    const train::Config many = test::read_layout(layout.model, layout.layout, world().size());
    const parity::LayoutTrace found = parity::trace_layout(world(), many, kSteps);
    if (world().rank() != 0) continue;
    const parity::ParityReport report = parity::compare(expected, found, {});
    EXPECT_TRUE(report.agrees) << layout.str() << ": " << report.rows.front().tensor << " "
                               << report.rows.front().difference << ", loss "
                               << report.loss_difference << " at step " << report.worst_step;
  }
  if (world().rank() == 0) std::printf("%zu layouts\n", all.size() / share.stride);
}

INSTANTIATE_TEST_SUITE_P(Models, Product,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Bool(),
                                          testing::Values(8, 4, 2, 1)));

}  // namespace
}  // namespace hyperslab
