// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/param/store.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "hyperslab/core/philox.hpp"

namespace hyperslab::param {
namespace {

ParamSpec matrix(const std::string& name, Dim rows, Dim columns) {
  return {name, {rows, columns}, Role::matrix, Init::normal, 1.0F};
}

/// Values alone, of a dtype that the masters have too.
View bind_values(ParamGroup& group, Arena& arena) {
  const View values = arena.take(DType::f32, {group.flat_size()}, "values");
  group.bind({.master = {values}, .value = {values}, .gradients = {}});
  return values;
}

TEST(ParamStore, FusedParametersLieOneAfterTheOther) {
  ParamStore store;
  store.begin_unit();
  const std::vector<ParamSpec> specs = {matrix("query", 4, 3), matrix("key", 2, 3),
                                        matrix("value", 2, 3)};
  const FusedParam fused = store.declare(specs);
  store.lay_out(0);
  Arena arena("parameters");
  bind_values(store.trained(), arena);

  EXPECT_EQ(fused.value().shape(), (Shape{8, 3}));
  EXPECT_EQ(fused.value().raw(), fused.members()[0]->value.raw());
  EXPECT_EQ(fused.members()[1]->flat_begin, 12);
  EXPECT_EQ(fused.members()[2]->flat_begin, 18);
}

TEST(ParamStore, BucketsHoldWholeUnitsAndDivideByRanks) {
  for (const int ranks : {1, 2, 3, 8}) {
    ParamStore store(mesh::Position({.data = ranks}, 0));
    for (int unit = 0; unit < 6; ++unit) {
      store.begin_unit();
      ParamSpec spec = matrix("unit" + std::to_string(unit), 10, 37);
      if (unit == 0) spec.placement.pipeline = layout::partial();
      store.declare(spec);
    }
    store.lay_out(2 * 10 * 37 * sizeof(float));

    Dim end = 0;
    int unit = 0;
    for (const Bucket& bucket : store.trained().buckets()) {
      EXPECT_EQ(bucket.begin, end);
      EXPECT_EQ(bucket.first_unit, unit);
      EXPECT_EQ(bucket.size() % (ranks * 32), 0) << ranks << " ranks";
      for (const Param& param : store.params()) {
        if (param.unit < bucket.first_unit || param.unit > bucket.last_unit) continue;
        EXPECT_GE(param.flat_begin, bucket.begin);
        EXPECT_LE(param.flat_begin + param.numel(), bucket.end);
      }
      end = bucket.end;
      unit = bucket.last_unit + 1;
    }
    EXPECT_EQ(unit, 6);
    EXPECT_EQ(end, store.trained().flat_size());
    EXPECT_EQ(store.trained().buckets().front().last_unit, 0) << "the tied table is alone";
  }
}

/// Four blocks between an embedding and a head; the second and the last have experts.
ParamStore with_experts(const mesh::ParallelConfig& parallel, int rank, std::size_t bucket_bytes) {
  ParamStore store(mesh::Position(parallel, rank));
  const int of_a_rank = 4 / parallel.expert;
  const int first = of_a_rank * mesh::Position(parallel, rank).at(mesh::Axis::expert);
  for (int unit = 0; unit < 6; ++unit) {
    store.begin_unit();
    store.declare(matrix("unit" + std::to_string(unit), 10, 37));
    for (int expert = first; (unit == 2 || unit == 4) && expert < first + of_a_rank; ++expert) {
      ParamSpec spec = matrix(std::to_string(unit) + "." + std::to_string(expert), 8, 12);
      spec.placement.expert = layout::shard(0);
      store.declare(spec);
    }
  }
  store.lay_out(bucket_bytes);
  return store;
}

TEST(ParamStore, ExpertsHaveBucketsThatCloseWithTheirUnits) {
  const mesh::ParallelConfig parallel = {.data = 4, .context = 2, .zero = 1, .expert = 2};
  const ParamStore store = with_experts(parallel, 7, 2 * 10 * 37 * sizeof(float));
  const ParamGroup& group = store.trained();

  std::vector<std::array<int, 3>> found;
  Dim flat = 0;
  Dim shards = 0;
  for (const Bucket& bucket : group.buckets()) {
    found.push_back({bucket.first_unit, bucket.last_unit, bucket.is_of_experts() ? 1 : 0});
    const int ranks = bucket.is_of_experts() ? 4 : 8;
    EXPECT_EQ(bucket.summed_axes(),
              bucket.is_of_experts() ? mesh::kExpertGradients : mesh::kGradients);
    EXPECT_EQ(bucket.begin, flat);
    EXPECT_EQ(bucket.size() % (ranks * 32), 0);
    EXPECT_EQ(group.shard(bucket).in_shards, shards);
    EXPECT_EQ(group.shard(bucket).size, bucket.size() / ranks);
    // Rank 7 is the last in its data group; of expert 1 it is the last of fold 0 and 1, context.
    EXPECT_EQ(group.shard(bucket).in_flat,
              bucket.begin + bucket.size() / ranks * (bucket.is_of_experts() ? 3 : 7));
    flat = bucket.end;
    shards += bucket.size() / ranks;
  }
  EXPECT_EQ(found, (std::vector<std::array<int, 3>>{{0, 1, 0}, {2, 3, 0}, {2, 4, 1}, {4, 5, 0}}));
  EXPECT_EQ(flat, group.flat_size());
  EXPECT_EQ(shards, group.shard_size());
  for (const Param* param : group.params()) {
    const Bucket& home = group.bucket_of(*param);
    EXPECT_EQ(home.is_of_experts(), param->name.starts_with("2.") || param->name.starts_with("4."));
    EXPECT_TRUE(param->unit >= home.first_unit && param->unit <= home.last_unit) << param->name;
    EXPECT_LE(param->flat_begin + param->numel(), home.end);
  }
  const ParamStore tiny = with_experts(parallel, 7, 1);
  const std::vector<Bucket>& small = tiny.trained().buckets();
  EXPECT_EQ(std::ranges::count_if(small, &Bucket::is_of_experts), 2);
  EXPECT_TRUE(std::ranges::is_sorted(small, {}, &Bucket::first_unit));
}

TEST(ParamStore, ExpertsOfOneRankLieAmongTheOthers) {
  const ParamStore store = with_experts({.data = 4}, 3, 1);
  ASSERT_EQ(store.trained().buckets().size(), 6U);
  for (const Bucket& bucket : store.trained().buckets()) EXPECT_FALSE(bucket.is_of_experts());
}

/// Over all ranks owners' slabs and ranges have every element of every tensor once.
TEST(ParamStore, ExpertsAreOwnedOnce) {
  for (const mesh::ParallelConfig& parallel :
       {mesh::ParallelConfig{.data = 4, .expert = 2}, mesh::ParallelConfig{.data = 4, .expert = 4},
        mesh::ParallelConfig{.data = 4, .context = 2, .shard = 2, .expert = 2}}) {
    std::map<std::string, Dim> elements;
    Dim counted = 0;
    for (int rank = 0; rank < parallel.ranks(); ++rank) {
      ParamStore store = with_experts(parallel, rank, 1);
      Arena arena("parameters");
      bind_values(store.trained(), arena);
      for (const ParamSlab& slab :
           slabs_of(store.trained(), store.trained().master(), SlabsOf::owner)) {
        elements[slab.param->name] += slab.part.numel();
      }
      for (const ElementRange& range : owned_ranges(store.trained())) counted += range.size;
    }
    EXPECT_EQ(elements.size(), 6U + 8U);
    for (const auto& [name, size] : elements) {
      EXPECT_EQ(size, name.starts_with("unit") ? 370 : 96) << name;
    }
    const auto padded_to = [](Dim size, Dim ranks) {
      return (size + ranks * 32 - 1) / (ranks * 32) * ranks * 32;
    };
    const Dim padded = 6 * padded_to(370, parallel.shards()) +
                       2 * parallel.expert *
                           padded_to(4 / parallel.expert * 96, parallel.shards() / parallel.expert);
    EXPECT_EQ(counted, padded);
  }
}

TEST(ParamStore, FrozenParametersHaveAGroupWithoutGradients) {
  ParamStore store({}, [](Role role) { return role == Role::norm; });
  store.begin_unit();
  ParamSpec norm = {"norm", {8}, Role::norm, Init::ones, 0};
  const FusedParam weight = store.declare(matrix("weight", 8, 8));
  const FusedParam scale = store.declare(norm);
  store.lay_out(1);

  ASSERT_EQ(store.trained().params().size(), 1U);
  ASSERT_EQ(store.frozen().params().size(), 1U);
  EXPECT_EQ(store.trained().params().front(), scale.members().front());
  EXPECT_EQ(store.trained().flat_size(), 32);
  EXPECT_EQ(store.frozen().flat_size(), 64);
  Arena arena("parameters");
  store.frozen().bind(
      {.master = {}, .value = {arena.take(DType::bf16, {64}, "frozen values")}, .gradients = {}});
  EXPECT_TRUE(weight.value());
  EXPECT_FALSE(weight.gradient());
  EXPECT_FALSE(weight.members().front()->master);
}

TEST(Initialize, IsAFunctionOfNameAndGlobalIndex) {
  const auto declare = [](ParamStore& store) {
    store.begin_unit();
    store.declare(matrix("w", 6, 5));
    ParamSpec columns = matrix("w", 6, 5);
    columns.part = Hyperslab::whole(columns.shape).narrow(1, 1, 3);
    store.declare(columns);
    store.lay_out(0);
  };
  ParamStore store;
  declare(store);
  Arena arena("parameters", Device::cpu, 4096);
  const View masters = bind_values(store.trained(), arena);
  Context ctx(Device::cpu);

  initialize(ctx, store.trained(), 99);

  const Param& whole = store.params()[0];
  const Param& part = store.params()[1];
  for (Dim row = 0; row < 6; ++row) {
    for (Dim column = 0; column < 3; ++column) {
      EXPECT_EQ(part.master.data<float>()[row * 3 + column],
                whole.master.data<float>()[row * 5 + column + 1]);
    }
  }
  std::vector<float> expected(30);
  fill_normal(expected.data(), 0, 30, 99, name_hash("w"), 1.0F);
  EXPECT_EQ(whole.master.data<float>()[29], expected[29]);
  EXPECT_EQ(masters.data<float>()[30], 0) << "padding";
}

/// Frozen values in 16 bits are the rounded masters of the same parameter when it is trained.
TEST(Initialize, GivesFrozenValuesThatAreRoundedMasters) {
  ParamStore store({}, [](Role) { return false; });
  store.begin_unit();
  store.declare(matrix("w", 6, 5));
  store.lay_out(0);
  Arena arena("parameters", Device::cpu, 4096);
  const View values = arena.take(DType::bf16, {store.frozen().flat_size()}, "frozen values");
  store.frozen().bind({.master = {}, .value = {values}, .gradients = {}});
  Context ctx(Device::cpu);

  initialize(ctx, store.frozen(), 99);

  std::vector<float> expected(30);
  fill_normal(expected.data(), 0, 30, 99, name_hash("w"), 1.0F);
  const auto* found = static_cast<const std::uint16_t*>(values.raw());
  for (std::size_t i = 0; i < 30; ++i) EXPECT_EQ(found[i], to_bf16(expected[i]).bits);
}

}  // namespace
}  // namespace hyperslab::param
