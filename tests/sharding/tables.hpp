// SPDX-License-Identifier: Apache-2.0
// Parameters of a stage with every kind that a store lays out: fused ones, norms and biases that
// every rank holds, shared key-value heads, a padded vocabulary, a tied table.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/param/store.hpp"
#include "hyperslab/sharding/presence.hpp"

namespace hyperslab::test {

struct TableCase {
  int data = 1;
  int tensor = 1;
  int tensor_rank = 0;
  int replicas = 1;       ///< tensor ranks that hold the same key-value head
  bool sequence = false;  ///< gradients of norms are terms of a sum over the tensor group
  bool tied = false;
  bool first = true;  ///< has the embedding
  bool last = true;   ///< has the head
  std::size_t bucket_bytes = 1;
  double width_ratio = 1;  ///< of the parametrization
  int shard = 0;           ///< data ranks that share state; 0: all
  int context = 1;
  int expert = 1;   ///< data ranks that hold other experts
  int experts = 0;  ///< of a block, on all ranks
};

namespace detail {

using param::Init;
using param::ParamSpec;
using param::Role;

constexpr Dim kWidth = 6;
constexpr Dim kVocabulary = 9;

inline layout::Placement whole(const TableCase& c, bool sees_rows) {
  if (c.tensor == 1) return layout::shard(0);
  return sees_rows && c.sequence ? layout::partial() : layout::replicate();
}

/// Rows padded to an even number on every rank; the last ranks may have none.
inline ParamSpec vocabulary_table(const TableCase& c, const std::string& name) {
  ParamSpec spec = {name, {kVocabulary, kWidth}, Role::embedding, Init::normal, 0.1F};
  const Dim stored = (kVocabulary + 2 * c.tensor - 1) / (2 * c.tensor) * 2;
  const Dim first = std::min(kVocabulary, stored * c.tensor_rank);
  spec.part = Hyperslab::whole(spec.shape).narrow(0, first, std::min(stored, kVocabulary - first));
  spec.stored_rows = stored;
  if (c.tied) spec.placement.pipeline = layout::partial();
  return spec;
}

inline ParamSpec replicated(const TableCase& c, const std::string& name, Role role,
                            bool sees_rows) {
  ParamSpec spec = {name, {kWidth}, role, role == Role::norm ? Init::ones : Init::zeros, 0};
  spec.placement.tensor = whole(c, sees_rows);
  return spec;
}

/// Query, key and value; `width` 0: their biases.
inline std::vector<ParamSpec> projections(const TableCase& c, const std::string& name, Dim width) {
  std::vector<ParamSpec> specs;
  const auto add = [&](const char* which, Dim rows, Dim first, Dim count) -> ParamSpec& {
    const Shape shape = width == 0 ? Shape{rows} : Shape{rows, width};
    const Role role = width == 0 ? Role::bias : Role::matrix;
    ParamSpec& spec = specs.emplace_back(ParamSpec{name + which, shape, role, Init::normal, 0.1F});
    spec.part = Hyperslab::whole(shape).narrow(0, first, count);
    return spec;
  };
  add("query", 12, 12 / c.tensor * c.tensor_rank, 12 / c.tensor);
  for (const char* which : {"key", "value"}) {
    ParamSpec& spec = add(which, 3 * c.tensor / c.replicas, 3 * (c.tensor_rank / c.replicas), 3);
    spec.replicas = c.replicas;
    spec.replica = c.tensor_rank % c.replicas;
  }
  return specs;
}

/// Those of rank `expert_rank` along Axis::expert.
inline void declare_experts(param::ParamStore& table, const TableCase& c, const std::string& name,
                            int expert_rank) {
  const int mine = c.experts / c.expert;
  for (int expert = mine * expert_rank; expert < mine * (expert_rank + 1); ++expert) {
    const std::string prefix = name + "experts." + std::to_string(expert);
    ParamSpec up = {prefix + ".up", {20, kWidth}, Role::matrix, Init::normal, 0.1F};
    up.part = split(Hyperslab::whole(up.shape), 0, c.tensor_rank, c.tensor);
    ParamSpec down = {prefix + ".down", {kWidth, 20}, Role::matrix, Init::normal, 0.1F};
    down.part = split(Hyperslab::whole(down.shape), 1, c.tensor_rank, c.tensor);
    ParamSpec bias = replicated(c, prefix + ".down.bias", Role::bias, false);
    for (ParamSpec* spec : {&up, &down, &bias}) {
      spec->placement.expert = layout::shard(0);
      table.declare(*spec);
    }
  }
}

inline void declare_block(param::ParamStore& table, const TableCase& c, const std::string& name,
                          int expert_rank) {
  table.begin_unit();
  table.declare(replicated(c, name + "norm", Role::norm, true));
  table.declare(projections(c, name + "weight.", kWidth));
  table.declare(projections(c, name + "bias.", 0));
  ParamSpec output = {name + "output", {kWidth, 12}, Role::matrix, Init::normal, 0.1F};
  output.part = split(Hyperslab::whole(output.shape), 1, c.tensor_rank, c.tensor);
  table.declare(output);
  table.declare(replicated(c, name + "output.bias", Role::bias, false));
  ParamSpec up = {name + "up", {84, kWidth}, Role::matrix, Init::normal, 0.1F};
  up.part = split(Hyperslab::whole(up.shape), 0, c.tensor_rank, c.tensor);
  table.declare(up);
  if (c.experts > 0) declare_experts(table, c, name, expert_rank);
}

}  // namespace detail

/// Embedding, two blocks and head, as far as the stage has them, laid out. `data`, `tensor`: 1-4.
/// `data_rank`: along mesh::kGradients.
inline param::ParamStore make_table(const TableCase& c, int data_rank = 0) {
  const mesh::ParallelConfig sizes = {.data = c.data,
                                      .tensor = c.tensor,
                                      .pipeline = 2,
                                      .context = c.context,
                                      .shard = c.shard,
                                      .expert = c.expert};
  const auto at = mesh::Position(sizes, 0)
                      .moved(mesh::Axis::pipeline, c.first ? 0 : 1)
                      .moved(mesh::kGradients, data_rank)
                      .moved(mesh::Axis::tensor, c.tensor_rank);
  param::ParamStore table(at, [](param::Role) { return true; }, {}, {.width_ratio = c.width_ratio});
  param::FusedParam shared;
  if (c.first) {
    table.begin_unit();
    shared = table.declare(detail::vocabulary_table(c, "tokens"));
    param::ParamSpec positions = {
        "positions", {7, detail::kWidth}, param::Role::embedding, param::Init::normal, 0.1F};
    positions.placement.tensor = detail::whole(c, false);
    table.declare(positions);
  }
  const std::string stage = c.first ? "first." : "last.";
  for (const char* block : {"0.", "1."}) {
    detail::declare_block(table, c, stage + block, at.at(mesh::Axis::expert));
  }
  if (c.last) {
    table.begin_unit();
    table.declare(detail::replicated(c, "final_norm", param::Role::norm, true));
    if (!c.tied) table.declare(detail::vocabulary_table(c, "head"));
    if (c.tied && c.first) table.share(shared);
    if (c.tied && !c.first) table.declare(detail::vocabulary_table(c, "tokens"));
  }
  table.lay_out(c.bucket_bytes);
  return table;
}

/// A table on the CPU as a presence binds it, every byte of its memory 0xff: NaN.
class BoundTable {
 public:
  BoundTable(const TableCase& c, DType compute, int zero, int data_rank)
      : table_(make_table(c, data_rank)), presence_(sharding::zero(zero)) {
    const DType master = compute == DType::f64 ? DType::f64 : DType::f32;
    const sharding::Presence::DTypes dtypes = {master, compute, master};
    Arena parameters("parameters");
    Arena gradients("gradients");
    param::ParamStore measured = make_table(c, data_rank);
    sharding::Presence(sharding::zero(zero))
        .allocate(measured, {parameters, host_, &gradients}, dtypes);
    parameters_.emplace("parameters", Device::cpu, parameters.used_bytes());
    gradients_.emplace("gradients", Device::cpu, gradients.used_bytes());
    presence_.allocate(table_, {*parameters_, host_, &*gradients_}, dtypes);
    poison(group().master().data);
    poison(group().value().data);
    poison(presence_.gradients().sums().data);
    for (const param::Bucket& bucket : group().buckets()) poison(group().gradient(bucket));
  }
  [[nodiscard]] param::ParamStore& table() { return table_; }
  [[nodiscard]] const param::ParamGroup& group() const { return table_.trained(); }
  [[nodiscard]] sharding::Presence& presence() { return presence_; }

 private:
  static void poison(View view) {
    if (view) std::memset(view.raw(), 0xff, view.bytes());
  }
  param::ParamStore table_;
  sharding::Presence presence_;
  Arena host_{"host"};
  std::optional<Arena> parameters_;
  std::optional<Arena> gradients_;
};

/// Cases of one rank and several, with whole and with tiny buckets.
inline std::vector<TableCase> table_cases() {
  std::vector<TableCase> cases;
  for (const int data : {1, 2, 3, 4}) {
    for (const std::size_t bucket_bytes :
         {std::size_t{1}, std::size_t{3000}, std::size_t{1} << 20}) {
      cases.push_back({.data = data, .bucket_bytes = bucket_bytes});
      for (const int tensor_rank : {0, 3}) {
        cases.push_back({.data = data,
                         .tensor = 4,
                         .tensor_rank = tensor_rank,
                         .replicas = 2,
                         .sequence = true,
                         .tied = true,
                         .bucket_bytes = bucket_bytes});
      }
    }
  }
  return cases;
}

}  // namespace hyperslab::test
