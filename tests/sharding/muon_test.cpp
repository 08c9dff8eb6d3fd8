// SPDX-License-Identifier: Apache-2.0
// Muon on data, tensor and pipeline ranks against the same update of whole tensors on one.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>

#include "hyperslab/optim/optimizer.hpp"
#include "sharding/ranks.hpp"

namespace hyperslab::optim {
namespace {

using test::Layout;
using test::RankOfLayout;
using test::world;

constexpr int kSteps = 3;
constexpr int kMicrobatches = 2;
constexpr std::size_t kArenaBytes = std::size_t{1} << 20;

OptimizerConfig muon() {
  OptimizerConfig config;
  config.name = OptimizerKind::muon;
  config.momentum = 0.75;
  return config;
}

ops::StepState state_of(int step) {
  ops::StepState state;
  state.input.step = step;
  state.input.learning_rate = 0.1F / static_cast<float>(step);
  state.clip_scale = 0.75F;
  state.bias_correction1 = 1 - std::pow(0.9F, static_cast<float>(step));
  state.bias_correction2 = 1 - std::pow(0.95F, static_cast<float>(step));
  return state;
}

/// First master of an element of a global tensor.
float first_value(const std::string& name, Dim element) {
  return static_cast<float>(std::sin(static_cast<double>(name_hash(name) % 100 + element)));
}

/// Calls body(element of the slab, element of its global tensor).
template <class Body>
void for_each_element(const param::ParamSlab& slab, const Body& body) {
  const Hyperslab& part = slab.part;
  const bool is_matrix = part.count.rank() == 2;
  const Dim width = is_matrix ? part.count[1] : 1;
  const Dim pitch = is_matrix ? slab.param->global_shape[1] : 1;
  const Dim first = part.offset[0] * pitch + (is_matrix ? part.offset[1] : 0);
  for (Dim i = 0; i < part.numel(); ++i) body(i, first + i / width * pitch + i % width);
}

void fill_first_values(const param::ParamGroup& group) {
  for (const param::ParamSlab& slab :
       param::slabs_of(group, group.master(), param::SlabsOf::holder)) {
    for_each_element(slab, [&](Dim local, Dim global) {
      slab.data.data<float>()[local] = first_value(slab.param->name, global);
    });
  }
}

/// The stage's tensors, whole, with their optimizer.
class Whole {
 public:
  explicit Whole(const param::ParamStore& parts) {
    store_.begin_unit();
    for (const param::Param& param : parts.params()) {
      store_.declare({param.name, param.global_shape, param.role, param::Init::zeros, 0});
    }
    store_.lay_out(1);
    const Dim size = group().flat_size();
    const param::StateView masters = {arena_.take(DType::f32, {size}, "masters")};
    store_.trained().bind({.master = masters, .value = masters, .gradients = {}});
    gradients_ = {arena_.take(DType::f32, {size}, "gradients")};
    ops::fill(ctx_, 0, masters.data);
    ops::fill(ctx_, 0, gradients_.data);
    optimizer_ = make_optimizer(muon(), group(), {false, arena_});
    optimizer_->initialize(ctx_);
    fill_first_values(group());
  }
  [[nodiscard]] const param::ParamGroup& group() const { return store_.trained(); }
  [[nodiscard]] const Optimizer& optimizer() const { return *optimizer_; }

  /// Puts a part's gradient into the whole one.
  void add_part(const param::Param& part, const std::vector<float>& values) {
    for (const param::ParamSlab& slab :
         param::slabs_of(group(), gradients_, param::SlabsOf::holder)) {
      if (slab.param->name != part.name) continue;
      const View whole = slab.data;
      const param::ParamSlab mine = {&part, part.part, {}};
      for_each_element(mine, [&](Dim local, Dim global) {
        whole.data<float>()[global] = values[static_cast<std::size_t>(local)];
      });
    }
  }
  void update(const ops::StepState& state) {
    optimizer_->update_whole(ctx_, &state, gradients_);
    optimizer_->update(ctx_, &state, gradients_, group().all());
  }

 private:
  Context ctx_{Device::cpu, 1 << 16};
  param::ParamStore store_;
  Arena arena_{"whole", Device::cpu, kArenaBytes};
  param::StateView gradients_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// What a rank holds of a buffer has the bits of the whole.
void expect_parts_of(const param::ParamGroup& parts, const param::StateView& found,
                     const param::ParamGroup& whole, const param::StateView& expected) {
  std::map<std::string, CView> tensors;
  for (const param::ParamSlab& slab : param::slabs_of(whole, expected, param::SlabsOf::holder)) {
    tensors[slab.param->name] = slab.data;
  }
  for (const param::ParamSlab& slab : param::slabs_of(parts, found, param::SlabsOf::holder)) {
    const auto* all = tensors.at(slab.param->name).data<float>();
    const auto* mine = slab.data.data<float>();
    Dim differing = 0;
    for_each_element(slab, [&](Dim local, Dim global) {
      const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
      differing += bits(mine[local]) == bits(all[global]) ? 0 : 1;
    });
    EXPECT_EQ(differing, 0) << slab.param->name << " from " << slab.part.offset.str();
  }
}

/// A rank of a layout with the optimizer and its groups.
class Part {
 public:
  Part(const Layout& layout, const mesh::Mesh& mesh, int zero, std::size_t bucket_bytes,
       Dim round_elements)
      : rank_(layout, mesh, zero, bucket_bytes), whole_(rank_.table()) {
    optimizer_ = make_optimizer(muon(), rank_.group(), {rank_.presence.shards_state(), arena_},
                                {.data = &mesh.group(mesh::kShards),
                                 .tensor = &mesh.group(mesh::Axis::tensor),
                                 .round_elements = round_elements,
                                 .expert_data = &mesh.group(mesh::kExpertShards)});
    optimizer_->initialize(rank_.ctx);
    ops::fill(rank_.ctx, 0, rank_.group().master().data);
    fill_first_values(rank_.group());
  }

  void step(int step) {
    const ops::StepState state = state_of(step);
    rank_.step(step, kMicrobatches, 1);
    const param::StateView& gradients = rank_.presence.gradients().sums();
    optimizer_->update_whole(ctx_, &state, gradients);
    const std::vector<param::ElementRange>& ranges = rank_.presence.values().updated_ranges();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      optimizer_->update(rank_.ctx, &state, gradients, ranges[i]);
      rank_.presence.values().after_update(rank_.ctx, i);
    }
    rank_.presence.values().wait_all(rank_.ctx);
    update_whole(state, step);
    expect_equal();
  }

 private:
  void update_whole(const ops::StepState& state, int step) {
    for (int tensor = 0; tensor < rank_.layout().tensor; ++tensor) {
      const mesh::Position at = rank_.mesh().position().moved(mesh::Axis::tensor, tensor);
      const param::ParamStore table =
          test::make_table(rank_.layout().table(at, 1), at.at(mesh::kGradients));
      for (const param::Param& param : table.params()) {
        whole_.add_part(param, test::brute_force(rank_.layout(), param, at, step, kMicrobatches));
      }
    }
    whole_.update(state);
  }

  void expect_equal() {
    const param::ParamGroup& mine = rank_.group();
    expect_parts_of(mine, mine.master(), whole_.group(), whole_.group().master());
    const std::vector<Optimizer::State> found = optimizer_->state();
    const std::vector<Optimizer::State> expected = whole_.optimizer().state();
    for (std::size_t i = 0; i < found.size(); ++i) {
      expect_parts_of(mine, found[i].values, whole_.group(), expected[i].values);
    }
  }

  Context ctx_{Device::cpu, 1 << 16};  // with a workspace, for norms
  RankOfLayout rank_;
  Whole whole_;
  Arena arena_{"part", Device::cpu, kArenaBytes};
  std::unique_ptr<Optimizer> optimizer_;
};

TEST(ShardedMuon, HasTheBitsOfWholeTensorsInEveryLayout) {
  for (const Layout& layout : test::layouts_of(world().size())) {
    const mesh::Mesh mesh(world(), Device::cpu, layout.parallel(), layout.needs());
    for (const int zero : {0, 1, 2, 3}) {
      if (zero == 0 && layout.shard > 0) continue;  // refused by the deck's rules
      for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
        for (const Dim round_elements : {Dim{1}, Dim{300}, Dim{1} << 24}) {
          SCOPED_TRACE(layout.str() + " zero " + std::to_string(zero) + " bucket " +
                       std::to_string(bucket_bytes) + " round " + std::to_string(round_elements));
          Part part(layout, mesh, zero, bucket_bytes, round_elements);
          for (int step = 1; step <= kSteps; ++step) part.step(step);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::optim
