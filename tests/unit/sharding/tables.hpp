// SPDX-License-Identifier: Apache-2.0
// Parameters of a stage with everything that a table has to place: packs, norms and biases that
// every rank holds, shared key-value heads, a padded vocabulary, a tied table.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/nn/param.hpp"

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
};

namespace detail {

using nn::Holding;
using nn::Init;
using nn::ParamKind;
using nn::ParamSpec;

constexpr Dim kWidth = 6;
constexpr Dim kVocabulary = 9;

inline Holding whole(const TableCase& c, bool sees_rows) {
  if (c.tensor == 1) return Holding::parts;
  return sees_rows && c.sequence ? Holding::summed : Holding::equal;
}

/// Rows padded to an even number on every rank; the last ranks may have none.
inline ParamSpec vocabulary_table(const TableCase& c, const std::string& name) {
  ParamSpec spec = {name, {kVocabulary, kWidth}, ParamKind::token_table, Init::normal, 0.1F};
  const Dim stored = (kVocabulary + 2 * c.tensor - 1) / (2 * c.tensor) * 2;
  const Dim first = std::min(kVocabulary, stored * c.tensor_rank);
  spec.part = {0, first, std::min(stored, kVocabulary - first), stored};
  spec.tied = c.tied;
  return spec;
}

inline ParamSpec replicated(const TableCase& c, const std::string& name, ParamKind kind,
                            bool sees_rows) {
  ParamSpec spec = {name, {kWidth}, kind, kind == ParamKind::norm ? Init::ones : Init::zeros, 0};
  spec.holding = whole(c, sees_rows);
  return spec;
}

/// Query, key and value; `width` 0: their biases.
inline std::vector<ParamSpec> projections(const TableCase& c, const std::string& name, Dim width) {
  std::vector<ParamSpec> specs;
  const auto add = [&](const char* which, Dim rows, Dim first, Dim count) -> ParamSpec& {
    const Shape shape = width == 0 ? Shape{rows} : Shape{rows, width};
    const ParamKind kind = width == 0 ? ParamKind::bias : ParamKind::matrix;
    ParamSpec& spec = specs.emplace_back(ParamSpec{name + which, shape, kind, Init::normal, 0.1F});
    spec.part = {0, first, count};
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

inline void declare_block(nn::ParamTable& table, const TableCase& c, const std::string& name) {
  table.begin_unit();
  table.declare(replicated(c, name + "norm", ParamKind::norm, true));
  table.declare(projections(c, name + "weight.", kWidth));
  table.declare(projections(c, name + "bias.", 0));
  ParamSpec output = {name + "output", {kWidth, 12}, ParamKind::matrix, Init::normal, 0.1F};
  output.part = {1, 12 / c.tensor * c.tensor_rank, 12 / c.tensor};
  table.declare(output);
  table.declare(replicated(c, name + "output.bias", ParamKind::bias, false));
  ParamSpec up = {name + "up", {84, kWidth}, ParamKind::matrix, Init::normal, 0.1F};
  up.part = {0, 84 / c.tensor * c.tensor_rank, 84 / c.tensor};
  table.declare(up);
}

}  // namespace detail

/// Embedding, two blocks and head, as far as the stage has them, laid out. `data`, `tensor`: 1-4.
inline nn::ParamTable make_table(const TableCase& c) {
  nn::ParamTable table;
  nn::Pack shared;
  if (c.first) {
    table.begin_unit();
    const nn::ParamSpec tokens = detail::vocabulary_table(c, "tokens");
    shared = table.declare(std::span(&tokens, 1));
    nn::ParamSpec positions = {
        "positions", {7, detail::kWidth}, nn::ParamKind::position_table, nn::Init::normal, 0.1F};
    positions.holding = detail::whole(c, false);
    table.declare(positions);
  }
  const std::string stage = c.first ? "first." : "last.";
  for (const char* block : {"0.", "1."}) detail::declare_block(table, c, stage + block);
  if (c.last) {
    table.begin_unit();
    table.declare(detail::replicated(c, "final_norm", nn::ParamKind::norm, true));
    if (!c.tied) table.declare(detail::vocabulary_table(c, "head"));
    if (c.tied && c.first) table.use_again(shared);
    if (c.tied && !c.first) table.declare(detail::vocabulary_table(c, "tokens"));
  }
  table.lay_out(c.data, c.bucket_bytes);
  return table;
}

/// A table on the CPU, every byte of its memory 0xff: NaN.
class BoundTable {
 public:
  BoundTable(const TableCase& c, DType compute, const nn::Sharding& sharding)
      : table_(make_table(c)) {
    const DType master = compute == DType::f64 ? DType::f64 : DType::f32;
    Arena parameters("parameters");
    Arena gradients("gradients");
    nn::ParamTable(table_).bind(parameters, &gradients, master, compute, sharding);
    parameters_.emplace("parameters", Device::cpu, parameters.used_bytes());
    gradients_.emplace("gradients", Device::cpu, gradients.used_bytes());
    table_.bind(*parameters_, &*gradients_, master, compute, sharding);
    poison(table_.master());
    poison(table_.value());
    poison(table_.gradient());
    poison(table_.gradient_shards());
    for (const nn::Bucket& bucket : table_.buckets()) poison(table_.gradient(bucket));
  }
  [[nodiscard]] nn::ParamTable& table() { return table_; }

 private:
  static void poison(View view) {
    if (view) std::memset(view.raw(), 0xff, view.bytes());
  }
  nn::ParamTable table_;
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

/// The bucket that a parameter lies in.
inline const nn::Bucket& bucket_of(const nn::ParamTable& table, const nn::Param& param) {
  return *std::ranges::find_if(table.buckets(), [&](const nn::Bucket& bucket) {
    return param.flat_begin >= bucket.begin && param.flat_begin < bucket.end;
  });
}

}  // namespace hyperslab::test
