// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/param.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "hyperslab/core/philox.hpp"

namespace hyperslab::nn {
namespace {

ParamSpec matrix(const std::string& name, Dim rows, Dim columns) {
  return {name, {rows, columns}, ParamKind::matrix, Init::normal, 1.0F};
}

TEST(ParamTable, PacksLieOneBehindTheOther) {
  ParamTable table;
  table.begin_unit();
  const std::vector<ParamSpec> specs = {matrix("query", 4, 3), matrix("key", 2, 3),
                                        matrix("value", 2, 3)};
  const Pack pack = table.declare(specs);
  table.lay_out(1, 0);
  Arena arena("parameters");
  table.bind(arena, &arena, DType::f32, DType::f32, {});

  EXPECT_EQ(pack.value().shape(), (Shape{8, 3}));
  EXPECT_EQ(pack.value().raw(), pack.members[0]->value.raw());
  EXPECT_EQ(pack.members[1]->flat_begin, 12);
  EXPECT_EQ(pack.members[2]->flat_begin, 18);
}

TEST(ParamTable, BucketsHoldWholeUnitsAndDivideByRanks) {
  for (const int ranks : {1, 2, 3, 8}) {
    ParamTable table;
    for (int unit = 0; unit < 6; ++unit) {
      table.begin_unit();
      ParamSpec spec = matrix("unit" + std::to_string(unit), 10, 37);
      spec.tied = unit == 0;
      table.declare(spec);
    }
    table.lay_out(ranks, 2 * 10 * 37 * sizeof(float));

    Dim end = 0;
    int unit = 0;
    for (const Bucket& bucket : table.buckets()) {
      EXPECT_EQ(bucket.begin, end);
      EXPECT_EQ(bucket.first_unit, unit);
      EXPECT_EQ(bucket.size() % (ranks * 32), 0) << ranks << " ranks";
      for (const Param& param : table.params()) {
        if (param.unit < bucket.first_unit || param.unit > bucket.last_unit) continue;
        EXPECT_GE(param.flat_begin, bucket.begin);
        EXPECT_LE(param.flat_begin + param.numel(), bucket.end);
      }
      end = bucket.end;
      unit = bucket.last_unit + 1;
    }
    EXPECT_EQ(unit, 6);
    EXPECT_EQ(end, table.flat_size());
    EXPECT_EQ(table.buckets().front().last_unit, 0) << "the tied table is alone";
  }
}

TEST(Initialize, IsAFunctionOfNameAndGlobalIndex) {
  ParamTable table;
  table.begin_unit();
  Param& whole = table.declare(matrix("w", 6, 5));
  ParamSpec columns = matrix("w", 6, 5);
  columns.part = {1, 1, 3};
  Param& part = table.declare(columns);
  table.lay_out(1, 0);
  Arena measuring("parameters");
  ParamTable copy = table;
  copy.bind(measuring, nullptr, DType::f32, DType::f32, {});
  Arena arena("parameters", Device::cpu, measuring.used_bytes());
  table.bind(arena, nullptr, DType::f32, DType::f32, {});

  const Bucket& bucket = table.buckets().front();
  Context ctx(Device::cpu);
  initialize(ctx, table, bucket, 99, table.master());

  for (Dim row = 0; row < 6; ++row) {
    for (Dim column = 0; column < 3; ++column) {
      EXPECT_EQ(part.master.data<float>()[row * 3 + column],
                whole.master.data<float>()[row * 5 + column + 1]);
    }
  }
  std::vector<float> expected(30);
  fill_normal(expected.data(), 0, 30, 99, name_hash("w"), 1.0F);
  EXPECT_EQ(whole.master.data<float>()[29], expected[29]);
}

}  // namespace
}  // namespace hyperslab::nn
