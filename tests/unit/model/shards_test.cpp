// SPDX-License-Identifier: Apache-2.0
// What data ranks hold of a table whose masters and gradients are cut.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "hyperslab/model/stage.hpp"
#include "support/tensors.hpp"
#include "unit/sharding/tables.hpp"

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
        BoundTable bound(c, DType::bf16, {zero, rank, c.data});
        check(c, bound.table());
      }
    }
  }
}

TEST(Shards, FillTheirSpaceAndTogetherTheFlatOne) {
  for (const TableCase& c : test::table_cases()) {
    for (const int zero : {1, 2}) {
      std::vector<int> flat;
      for (int rank = 0; rank < c.data; ++rank) {
        BoundTable bound(c, DType::bf16, {zero, rank, c.data});
        const nn::ParamTable& table = bound.table();
        flat.resize(static_cast<std::size_t>(table.flat_size()), 0);
        Dim end = 0;
        for (const nn::Bucket& bucket : table.buckets()) {
          EXPECT_EQ(table.shard_in_space(bucket), end);
          end += table.shard_size(bucket);
          for (Dim i = 0; i < table.shard_size(bucket); ++i) {
            ++flat.at(static_cast<std::size_t>(table.shard_in_flat(bucket) + i));
          }
        }
        EXPECT_EQ(end, table.shard_size());
        EXPECT_EQ(table.master().numel(), table.shard_size());
        EXPECT_EQ(table.value().numel(), table.flat_size());
      }
      EXPECT_TRUE(std::ranges::all_of(flat, [](int n) { return n == 1; }))
          << name_of_case(c, zero, 0);
    }
  }
}

/// Row-major elements of a piece in its parameter, one after the other.
std::vector<Dim> elements_of(const nn::Param& param, const nn::Hyperslab& piece) {
  const bool matrix = param.count.rank() == 2;
  std::vector<Dim> out;
  for (Dim row = 0; row < (matrix ? piece.count[0] : 1); ++row) {
    for (Dim i = 0; i < piece.count.back(); ++i) {
      const Dim above = matrix ? (piece.offset[0] + row) * param.count[1] : 0;
      out.push_back(above + piece.offset.back() + i);
    }
  }
  return out;
}

TEST(ShardPieces, CoverEveryParameterOnceAndSayWhereItLies) {
  for (const TableCase& c : test::table_cases()) {
    std::map<std::string, std::vector<int>> covered;
    for (int rank = 0; rank < c.data; ++rank) {
      SCOPED_TRACE(name_of_case(c, 1, rank));
      BoundTable bound(c, DType::bf16, {1, rank, c.data});
      const nn::ParamTable& table = bound.table();
      for (const nn::Param& param : table.params()) {
        covered[param.name].resize(static_cast<std::size_t>(param.numel()), 0);
      }
      for (const auto& [param, piece, in_flat, in_space] : nn::shard_pieces(table)) {
        const nn::Bucket& bucket = test::bucket_of(table, *param);
        const Dim in_shard = in_flat - table.shard_in_flat(bucket);
        EXPECT_GE(in_shard, 0);
        EXPECT_EQ(in_space, table.shard_in_space(bucket) + in_shard);
        Dim next = in_flat;
        for (const Dim element : elements_of(*param, piece)) {
          EXPECT_EQ(param->flat_begin + element, next++);
          ++covered[param->name].at(static_cast<std::size_t>(element));
        }
        EXPECT_LE(next - table.shard_in_flat(bucket), table.shard_size(bucket));
      }
    }
    for (const auto& [name, times] : covered) {
      EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; })) << name;
    }
  }
}

TEST(Shards, ViewsOfParametersLieInTheirBuckets) {
  for_every_rank([](const TableCase& c, const nn::ParamTable& table) {
    for (const nn::Param& param : table.params()) {
      const nn::Bucket& bucket = test::bucket_of(table, param);
      EXPECT_FALSE(param.master) << param.name;
      EXPECT_EQ(param.value.raw(), table.value().slice(param.flat_begin, 0).raw()) << param.name;
      const View home = table.gradient(bucket);
      EXPECT_EQ(home.numel(), bucket.size());
      EXPECT_EQ(param.gradient.raw(), home.slice(param.flat_begin - bucket.begin, 0).raw());
      EXPECT_EQ(param.gradient.dtype(), DType::f32);
    }
    EXPECT_EQ(test::bucket_of(table, table.params().front()).kind == nn::BucketKind::tied, c.tied);
  });
}

/// Buckets that backward fills one after the other never share memory, nor do those that stay open.
TEST(Shards, GradientsOfZero2TakeTurnsInTwoBuffers) {
  for_every_rank([](const TableCase& c, const nn::ParamTable& table) {
    if (table.sharding().zero < 2) {
      EXPECT_EQ(table.gradient().numel(), table.flat_size());
      return;
    }
    EXPECT_FALSE(table.gradient());
    EXPECT_EQ(table.gradient_shards().numel(), table.shard_size());
    const void* before = nullptr;
    std::set<const void*> parts;
    std::set<const void*> own;
    for (const nn::Bucket& bucket : table.buckets()) {
      const void* memory = table.gradient(bucket).raw();
      const bool is_part = bucket.kind == nn::BucketKind::parts;
      EXPECT_NE(memory, before);
      EXPECT_TRUE(is_part || own.insert(memory).second);
      if (is_part) parts.insert(memory);
      before = memory;
    }
    EXPECT_LE(parts.size(), 2U);
    EXPECT_EQ(own.size(), c.tensor == 1 ? 0U : 3U);
    for (const void* memory : own) EXPECT_FALSE(parts.contains(memory));
  });
}

/// A stage on the CPU as a data rank of a 16-bit run would hold it.
class StageOfRank {
 public:
  StageOfRank(model::Family family, bool tied, DType compute, const nn::Sharding& sharding) {
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
    options.sharding = sharding;
    options.vocabulary_multiple = 8;
    options.bucket_bytes = 4096;
    model::Arenas measuring = model::Arenas::measuring();
    const model::Stage planned(spec, options, measuring);
    arenas_.emplace(model::Arenas::real(Device::cpu, measuring.used(), true));
    stage_.emplace(spec, options, *arenas_);
    Context ctx(Device::cpu);
    stage_->initialize(ctx);
  }
  [[nodiscard]] const nn::ParamTable& params() { return stage_->params(); }

 private:
  std::optional<model::Arenas> arenas_;
  std::optional<model::Stage> stage_;
};

std::uint16_t rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? to_bf16(value).bits : to_f16(value).bits;
}

/// Masters and values of `cut` are those of `whole`, and values are masters rounded.
void expect_part_of(const nn::ParamTable& cut, const nn::ParamTable& whole) {
  ASSERT_TRUE(cut.masters_are_sharded());
  ASSERT_EQ(cut.flat_size(), whole.flat_size());
  const auto* values = static_cast<const std::uint16_t*>(cut.value().raw());
  const auto* wanted = static_cast<const std::uint16_t*>(whole.value().raw());
  const float* all = whole.master().data<float>();
  for (Dim i = 0; i < cut.flat_size(); ++i) {
    ASSERT_EQ(values[i], wanted[i]) << "flat element " << i;
    ASSERT_EQ(values[i], rounded(all[i], cut.value().dtype())) << "flat element " << i;
  }
  for (const nn::Bucket& bucket : cut.buckets()) {
    const float* mine = cut.master().data<float>() + cut.shard_in_space(bucket);
    for (Dim i = 0; i < cut.shard_size(bucket); ++i) {
      ASSERT_EQ(mine[i], all[cut.shard_in_flat(bucket) + i]) << "element " << i << " of a shard";
    }
  }
}

TEST(ShardedStage, BeginsAsTheWholeOneDoes) {
  for (const DType compute : {DType::bf16, DType::f16}) {
    for (const bool gpt2 : {true, false}) {
      const auto family = gpt2 ? model::Family::gpt2 : model::Family::llama;
      for (const int ranks : {1, 2, 3, 4}) {
        StageOfRank whole(family, gpt2, compute, {0, 0, ranks});
        for (const int zero : {1, 2}) {
          for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(std::string(name_of(family)) + " zero " + std::to_string(zero) + " rank " +
                         std::to_string(rank) + " of " + std::to_string(ranks));
            StageOfRank cut(family, gpt2, compute, {zero, rank, ranks});
            expect_part_of(cut.params(), whole.params());
          }
        }
      }
    }
  }
}

/// Where nothing is cut, every number of data ranks begins with the same values, by name.
TEST(ShardedStage, ValuesDoNotDependOnTheRanks) {
  StageOfRank one(model::Family::llama, false, DType::bf16, {});
  StageOfRank three(model::Family::llama, false, DType::bf16, {1, 2, 3});

  std::map<std::string, CView> values;
  for (const nn::Param& param : one.params().params()) values.emplace(param.name, param.value);
  for (const nn::Param& param : three.params().params()) {
    const CView wanted = values.at(param.name);
    ASSERT_EQ(param.value.bytes(), wanted.bytes());
    EXPECT_EQ(std::memcmp(param.value.raw(), wanted.raw(), wanted.bytes()), 0) << param.name;
  }
}

}  // namespace
}  // namespace hyperslab
