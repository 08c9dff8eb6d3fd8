// SPDX-License-Identifier: Apache-2.0
// What data ranks hold of a table whose masters and gradients are cut.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "hyperslab/model/stage.hpp"
#include "sharding/tables.hpp"
#include "support/tensors.hpp"

namespace hyperslab {
namespace {

using test::BoundTable;
using test::TableCase;

std::string name_of_case(const TableCase& c, int zero, int rank) {
  return "zero " + std::to_string(zero) + " rank " + std::to_string(rank) + " of " +
         std::to_string(c.data) + " tensor " + std::to_string(c.tensor_rank) + " of " +
         std::to_string(c.tensor) + " buckets of " + std::to_string(c.bucket_bytes);
}

template <class Check>
void for_every_rank(Check&& check) {
  for (const TableCase& c : test::table_cases()) {
    for (const int zero : {1, 2}) {
      for (int rank = 0; rank < c.data; ++rank) {
        SCOPED_TRACE(name_of_case(c, zero, rank));
        BoundTable bound(c, DType::bf16, zero, rank);
        check(c, zero, bound);
      }
    }
  }
}

TEST(Shards, FillTheirSpaceAndTogetherTheFlatOne) {
  for (const TableCase& c : test::table_cases()) {
    for (const int zero : {1, 2}) {
      std::vector<int> flat;
      for (int rank = 0; rank < c.data; ++rank) {
        BoundTable bound(c, DType::bf16, zero, rank);
        const param::ParamGroup& group = bound.group();
        flat.resize(static_cast<std::size_t>(group.flat_size()), 0);
        Dim end = 0;
        for (const param::ElementRange& mine : bound.presence().values().updated_ranges()) {
          EXPECT_EQ(mine.in_shards, end);
          end += mine.size;
          for (Dim i = 0; i < mine.size; ++i) ++flat.at(static_cast<std::size_t>(mine.in_flat + i));
        }
        EXPECT_EQ(end, group.shard_size());
        EXPECT_EQ(group.master().data.numel(), group.shard_size());
        EXPECT_EQ(group.value().data.numel(), group.flat_size());
      }
      EXPECT_TRUE(std::ranges::all_of(flat, [](int n) { return n == 1; }))
          << name_of_case(c, zero, 0);
    }
  }
}

/// Calls visit(element of the global tensor, index in the slab's data).
template <class Visit>
void for_elements(const param::ParamSlab& slab, Visit visit) {
  const HyperslabRuns runs(slab.part, Hyperslab::whole(slab.param->global_shape), slab.part);
  for (std::int64_t run = 0; run < runs.size(); ++run) {
    for (Dim i = 0; i < runs.length(); ++i) visit(runs[run].target + i, runs[run].source + i);
  }
}

/// Every element of a tensor that this tensor rank holds comes from exactly one data rank, with its
/// own value.
TEST(OwnedSlabs, CoverEveryParameterOnceWithItsValues) {
  for (const TableCase& c : test::table_cases()) {
    for (const int zero : {0, 1}) {
      std::map<std::string, std::map<Dim, float>> found;
      std::map<std::string, const param::Param*> params;
      std::vector<std::unique_ptr<BoundTable>> tables;
      for (int rank = 0; rank < c.data; ++rank) {
        SCOPED_TRACE(name_of_case(c, zero, rank));
        tables.push_back(std::make_unique<BoundTable>(c, DType::bf16, zero, rank));
        const param::ParamGroup& group = tables.back()->group();
        Context ctx(Device::cpu);
        param::initialize(ctx, group, 3);
        for (const param::Param* param : group.params()) {
          if (param->owned) params[param->name] = param;
        }
        for (const param::ParamSlab& slab :
             param::slabs_of(group, group.master(), param::SlabsOf::owner)) {
          ASSERT_EQ(problem_of(slab.part, slab.param->global_shape), "");
          for_elements(slab, [&](Dim element, Dim index) {
            const float value = slab.data.data<float>()[index];
            EXPECT_TRUE(found[slab.param->name].emplace(element, value).second);
          });
        }
      }
      for (const auto& [name, param] : params) {
        EXPECT_EQ(static_cast<Dim>(found[name].size()), param->numel()) << name;
      }
      EXPECT_EQ(found.size(), params.size());
    }
  }
}

TEST(Shards, ViewsOfParametersLieInTheirBuckets) {
  for_every_rank([](const TableCase& c, int /*zero*/, BoundTable& bound) {
    const param::ParamGroup& group = bound.group();
    for (const param::Param* param : group.params()) {
      const param::Bucket& bucket = group.bucket_of(*param);
      EXPECT_FALSE(param->master) << param->name;
      EXPECT_EQ(param->value.raw(), group.value().data.slice(param->flat_begin, 0).raw());
      const View home = group.gradient(bucket);
      EXPECT_EQ(home.numel(), bucket.size());
      EXPECT_EQ(param->gradient.raw(), home.slice(param->flat_begin - bucket.begin, 0).raw());
      EXPECT_EQ(param->gradient.dtype(), DType::f32);
    }
    const param::Bucket& first = group.bucket_of(*group.params().front());
    EXPECT_EQ(first.placement.pipeline.is_partial(), c.tied);
  });
}

/// Buckets that backward fills one after the other never share memory, nor do those that stay open.
TEST(Shards, GradientsOfZero2TakeTurnsInTwoBuffers) {
  for_every_rank([](const TableCase& c, int zero, BoundTable& bound) {
    const param::ParamGroup& group = bound.group();
    const param::StateView& gradients = bound.presence().gradients().sums();
    EXPECT_EQ(gradients.sharded, zero == 2);
    EXPECT_EQ(gradients.data.numel(), zero == 2 ? group.shard_size() : group.flat_size());
    if (zero < 2) return;
    const void* before = nullptr;
    std::set<const void*> in_turn;
    std::set<const void*> own;
    for (const param::Bucket& bucket : group.buckets()) {
      const void* memory = group.gradient(bucket).raw();
      EXPECT_NE(memory, before);
      EXPECT_TRUE(bucket.is_sharded() || own.insert(memory).second);
      if (bucket.is_sharded()) in_turn.insert(memory);
      before = memory;
    }
    EXPECT_LE(in_turn.size(), 2U);
    EXPECT_EQ(own.size(), c.tensor == 1 ? 0U : 3U);
    for (const void* memory : own) EXPECT_FALSE(in_turn.contains(memory));
  });
}

/// A stage on the CPU as a data rank of a 16-bit run would hold it.
class StageOfRank {
 public:
  StageOfRank(model::Family family, bool tied, DType compute, int zero,
              const mesh::Position& position = {})
      : presence_(sharding::zero(zero)) {
    model::ModelSpec spec = model::preset(family);
    spec.layers = 2;
    spec.width = 24;
    spec.heads = 4;
    spec.kv_heads = family == model::Family::llama ? 2 : 4;
    spec.ffn_width = 40;
    spec.vocabulary = 101;
    spec.context = 12;
    spec.tie_embeddings = tied;
    model::StageOptions options;
    options.T = 12;
    options.compute = compute;
    options.seed = 5;
    options.position = position;
    options.vocabulary_multiple = 8;
    options.bucket_bytes = 4096;
    model::Arenas measuring = model::Arenas::measuring();
    sharding::Presence measured(sharding::zero(zero));
    const model::Stage planned(spec, options, measuring, measured);
    arenas_.emplace(model::Arenas::real(Device::cpu, measuring.used(), true));
    stage_.emplace(spec, options, *arenas_, presence_);
    Context ctx(Device::cpu);
    stage_->initialize(ctx);
  }
  [[nodiscard]] const param::ParamStore& params() { return stage_->params(); }

 private:
  sharding::Presence presence_;
  std::optional<model::Arenas> arenas_;
  std::optional<model::Stage> stage_;
};

std::uint16_t rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits;
}

/// Masters and values of `part` are those of `whole`, and values are masters rounded.
void expect_part_of(const param::ParamGroup& part, const param::ParamGroup& whole) {
  ASSERT_TRUE(part.master().sharded);
  ASSERT_EQ(part.flat_size(), whole.flat_size());
  const auto* values = static_cast<const std::uint16_t*>(part.value().data.raw());
  const auto* expected = static_cast<const std::uint16_t*>(whole.value().data.raw());
  const float* all = whole.master().data.data<float>();
  for (Dim i = 0; i < part.flat_size(); ++i) {
    ASSERT_EQ(values[i], expected[i]) << "flat element " << i;
    ASSERT_EQ(values[i], rounded(all[i], part.value().data.dtype())) << "flat element " << i;
  }
  for (const param::Bucket& bucket : part.buckets()) {
    const auto [in_flat, in_shards, size] = part.shard(bucket);
    const float* mine = part.master().data.data<float>() + in_shards;
    for (Dim i = 0; i < size; ++i) {
      ASSERT_EQ(mine[i], all[in_flat + i]) << "element " << i << " of a shard";
    }
  }
}

TEST(ShardedStage, BeginsAsTheWholeOneDoes) {
  for (const DType compute : {DType::bf16, DType::f16}) {
    for (const bool gpt2 : {true, false}) {
      const auto family = gpt2 ? model::Family::gpt2 : model::Family::llama;
      for (const int ranks : {1, 2, 3, 4}) {
        StageOfRank whole(family, gpt2, compute, 0, mesh::Position({.data = ranks}, 0));
        for (const int zero : {1, 2}) {
          for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(std::string(name_of(family)) + " zero " + std::to_string(zero) + " rank " +
                         std::to_string(rank) + " of " + std::to_string(ranks));
            StageOfRank part(family, gpt2, compute, zero, mesh::Position({.data = ranks}, rank));
            expect_part_of(part.params().trained(), whole.params().trained());
          }
        }
      }
    }
  }
}

/// Where nothing is cut, every number of data ranks begins with the same values, by name.
TEST(ShardedStage, ValuesDoNotDependOnTheRanks) {
  StageOfRank one(model::Family::llama, false, DType::bf16, 0);
  StageOfRank three(model::Family::llama, false, DType::bf16, 1, mesh::Position({.data = 3}, 2));

  std::map<std::string, CView> values;
  for (const param::Param& param : one.params().params()) values.emplace(param.name, param.value);
  for (const param::Param& param : three.params().params()) {
    const CView expected = values.at(param.name);
    ASSERT_EQ(param.value.bytes(), expected.bytes());
    EXPECT_EQ(std::memcmp(param.value.raw(), expected.raw(), expected.bytes()), 0) << param.name;
  }
}

}  // namespace
}  // namespace hyperslab
