// SPDX-License-Identifier: Apache-2.0
// A rank of a layout that writes known gradients in the order in which a trainer's passes do.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "sharding/tables.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::test {

struct Layout {
  static constexpr int kExperts = 4;
  int data = 1;
  int pipeline = 1;  ///< 1 or 2
  int tensor = 1;
  int replicas = 1;
  bool sequence = false;
  bool tied = false;
  int shard = 0;  ///< data ranks that share state; 0: all
  int context = 1;
  int expert = 1;
  [[nodiscard]] mesh::ParallelConfig parallel() const {
    mesh::ParallelConfig config;
    config.data = data;
    config.shard = shard;
    config.pipeline = pipeline;
    config.tensor = tensor;
    config.sequence = sequence;
    config.context = context;
    config.expert = expert;
    return config;
  }
  [[nodiscard]] mesh::GroupNeeds needs() const { return {tied && pipeline > 1, replicas}; }
  [[nodiscard]] TableCase table(const mesh::Position& at, std::size_t bucket_bytes) const {
    using mesh::Axis;
    return {.data = data,
            .tensor = tensor,
            .tensor_rank = at.at(Axis::tensor),
            .replicas = replicas,
            .sequence = sequence,
            .tied = tied,
            .first = at.is_first(Axis::pipeline),
            .last = at.is_last(Axis::pipeline),
            .bucket_bytes = bucket_bytes,
            .shard = shard,
            .context = context,
            .expert = expert,
            .experts = expert > 1 ? kExperts : 0};
  }
  [[nodiscard]] std::string str() const {
    return mesh::describe(parallel()) + " replicas " + std::to_string(replicas) + " sequence " +
           std::to_string(static_cast<int>(sequence)) + " tied " +
           std::to_string(static_cast<int>(tied)) + " shard " + std::to_string(shard);
  }
};

/// Those that hold different experts and fill a world of so many ranks.
inline std::vector<Layout> layouts_with_experts(int ranks) {
  const std::vector<Layout> all = {{.data = 2, .expert = 2},
                                   {.data = 4, .expert = 2},
                                   {.data = 4, .expert = 4},
                                   {.data = 4, .shard = 2, .expert = 2},
                                   {.data = 2, .context = 2, .expert = 2},
                                   {.data = 2, .pipeline = 2, .tied = true, .expert = 2},
                                   {.data = 2, .tensor = 2, .sequence = true, .expert = 2},
                                   {.data = 4, .shard = 2, .context = 2, .expert = 2}};
  std::vector<Layout> out;
  std::ranges::copy_if(all, std::back_inserter(out),
                       [&](const Layout& layout) { return layout.parallel().ranks() == ranks; });
  return out;
}

/// Those that fill a world of so many ranks; above four with experts alone.
inline std::vector<Layout> layouts_of(int ranks) {
  std::vector<Layout> out = layouts_with_experts(ranks);
  if (ranks > 4) return out;
  for (const int pipeline : {1, 2}) {
    for (const int tensor : {1, 2, 3, 4}) {
      if (ranks % (pipeline * tensor) != 0) continue;
      for (const bool tied : {false, true}) {
        for (const int replicas : {1, 2, 4}) {
          if (tensor % replicas != 0) continue;
          const int data = ranks / (pipeline * tensor);
          out.push_back({data, pipeline, tensor, replicas, (replicas + data) % 2 == 0, tied});
          if (data == 4) out.push_back({data, pipeline, tensor, replicas, false, tied, 2});
        }
        if (tensor > 1)
          out.push_back({ranks / (pipeline * tensor), pipeline, tensor, 1, true, tied});
      }
    }
  }
  return out;
}

/// Mesh coordinates as one number.
inline int writer(const mesh::Position& at) {
  using mesh::Axis;
  return (at.at(mesh::kGradients) * 2 + at.at(Axis::pipeline)) * 4 + at.at(Axis::tensor);
}

/// What a rank adds to a local element of a parameter in a microbatch: a small integer, so that
/// sums are exact. `unit`: of the pass that writes, for a tied table has two.
struct Term {
  int step = 0;
  int microbatch = 0;
  bool by_head = false;
};
inline float term(const std::string& name, Dim element, const Term& when, int writer) {
  const auto mixed = static_cast<Dim>(name_hash(name) % 1009) + 7 * element + 5 * writer +
                     3 * when.microbatch + 11 * when.step + (when.by_head ? 17 : 0);
  return static_cast<float>(mixed % 23 - 11);
}

/// Whether the unit is the head of a stage that has the table, too, and adds to its gradient.
inline bool head_writes(const TableCase& c, const param::ParamStore& table,
                        const param::Param& param, int unit) {
  const bool is_head = c.last && unit == table.params().back().unit;
  return is_head && c.tied && c.first && param.name == "tokens";
}

class RankOfLayout {
 public:
  RankOfLayout(const Layout& layout, const mesh::Mesh& mesh, int zero, std::size_t bucket_bytes,
               DType compute = DType::f32)
      : layout_(layout),
        mesh_(mesh),
        case_(layout.table(mesh.position(), bucket_bytes)),
        bound_(case_, compute, zero, mesh.at(mesh::kGradients)),
        presence(bound_.presence()) {
    for (const param::Bucket& bucket : group().buckets()) {  // gaps are finite from the start
      ops::fill(ctx, 0, group().gradient(bucket));
    }
    presence.connect(mesh);
  }
  [[nodiscard]] param::ParamStore& table() { return bound_.table(); }
  [[nodiscard]] const param::ParamGroup& group() const { return bound_.group(); }
  [[nodiscard]] const mesh::Mesh& mesh() const { return mesh_; }
  [[nodiscard]] const Layout& layout() const { return layout_; }

  /// Forward and backward of all microbatches. `units` 1: every unit alone; 0: all those between
  /// two reductions at once, as graphs have them.
  void step(int step, int microbatches, int units_at_once) {
    presence.gradients().begin_step();
    for (int m = 0; m < microbatches; ++m) {
      const int units = table().params().back().unit + 1;
      if (case_.last) presence.gradients().before_backward(ctx, units - 1, m);
      const bool last_one = m == microbatches - 1;
      const bool reduces = presence.gradients().reduces() &&
                           (last_one || presence.gradients().reduces_every_microbatch());
      for (int last = units; last > 0;) {
        int first = last - 1;
        const auto ends = [&] {
          return units_at_once == 1 || (reduces && presence.gradients().closes(first, m, last_one));
        };
        while (first > 0 && !ends()) --first;
        for (int unit = first; unit < last; ++unit)
          presence.gradients().before_backward(ctx, unit, m);
        for (int unit = last - 1; unit >= first; --unit) write(unit, {step, m, false});
        if (reduces) presence.gradients().ready(ctx, first, m, last_one);
        presence.gradients().progress();
        last = first;
      }
    }
    presence.gradients().finish(ctx);
    presence.gradients().report_waits(ctx);
  }

  Context ctx{Device::cpu};

 private:
  /// Equal copies have equal gradients on all tensor ranks.
  [[nodiscard]] int writer_of(const param::Param& param) {
    const bool equal = param.placement.tensor.kind == layout::Placement::Kind::replicate;
    const mesh::Position& at = mesh_.position();
    return writer(equal ? at.moved(mesh::Axis::tensor, 0) : at);
  }
  void write(int unit, const Term& when) {
    for (const param::Param& param : table().params()) {
      const bool by_head = head_writes(case_, table(), param, unit);
      if (param.unit != unit && !by_head) continue;
      const bool second = !by_head && case_.tied && case_.last && param.name == "tokens" &&
                          unit != table().params().back().unit;
      const bool fresh =
          (when.microbatch == 0 || presence.gradients().reduces_every_microbatch()) && !second;
      float* gradient = param.gradient.data<float>();
      for (Dim i = 0; i < param.numel(); ++i) {
        const float value =
            term(param.name, i, {when.step, when.microbatch, by_head}, writer_of(param));
        gradient[i] = fresh ? value : gradient[i] + value;
      }
    }
  }
  Layout layout_;
  const mesh::Mesh& mesh_;
  TableCase case_;
  BoundTable bound_;

 public:
  sharding::Presence& presence;
};

/// The ranks whose terms make up a parameter's gradient on the rank `at`.
inline std::vector<mesh::Position> summed_over(const Layout& layout, const param::Param& param,
                                               const mesh::Position& at) {
  std::vector<mesh::Position> out;
  for (int rank = 0; rank < layout.parallel().ranks(); ++rank) {
    const mesh::Position other(layout.parallel(), rank);
    const bool both_ends = param.placement.pipeline.is_partial();
    const auto stage = mesh::Axis::pipeline;
    if (other.at(stage) != at.at(stage) && !both_ends) continue;
    const auto expert = mesh::Axis::expert;
    if (param.placement.expert.is_shard() && other.at(expert) != at.at(expert)) continue;
    const int theirs = other.at(mesh::Axis::tensor);
    const int mine = at.at(mesh::Axis::tensor);
    bool counts = theirs == mine;
    if (param.placement.tensor.kind == layout::Placement::Kind::replicate) counts = theirs == 0;
    if (param.placement.tensor.is_partial()) counts = true;
    if (param.replicas > 1) counts = theirs / param.replicas == mine / param.replicas;
    if (counts) out.push_back(other);
  }
  return out;
}

/// The whole gradient of a parameter on the rank `at`, by adding up all terms.
inline std::vector<float> brute_force(const Layout& layout, const param::Param& param,
                                      const mesh::Position& at, int step, int microbatches) {
  const bool twice = param.placement.pipeline.is_partial() && layout.pipeline == 1;
  std::vector<float> sum(static_cast<std::size_t>(param.numel()), 0);
  for (const mesh::Position& other : summed_over(layout, param, at)) {
    for (int m = 0; m < microbatches; ++m) {
      for (Dim i = 0; i < param.numel(); ++i) {
        float& value = sum[static_cast<std::size_t>(i)];
        value += term(param.name, i, {step, m, false}, writer(other));
        if (twice) value += term(param.name, i, {step, m, true}, writer(other));
      }
    }
  }
  return sum;
}

/// The flat space of the rank's table with every sum at its offset and zeros between.
inline std::vector<float> brute_force_flat(const Layout& layout, const param::ParamStore& table,
                                           const mesh::Position& at, int step, int microbatches) {
  std::vector<float> flat(static_cast<std::size_t>(table.trained().flat_size()), 0);
  for (const param::Param& param : table.params()) {
    std::ranges::copy(brute_force(layout, param, at, step, microbatches),
                      flat.begin() + param.flat_begin);
  }
  return flat;
}

}  // namespace hyperslab::test
