// SPDX-License-Identifier: Apache-2.0
// Matrices that are gathered as codes in 8-bit floats: on every rank the codes and scales must be,
// bit for bit, those of gathering values and rounding them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/sharding/strategy.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab {
namespace {

using param::GatheredCodes;
using param::ParamSpec;
using param::Role;
using test::world;

constexpr Dim kWidth = 48;

struct Matrices {
  std::vector<const GatheredCodes*> all;
  param::FusedParam norm;  ///< of the last block, beside them
};

ParamSpec matrix(const std::string& name, Dim rows, Dim columns) {
  return {name, {rows, columns}, Role::matrix, param::Init::normal, 0.1F};
}

/// Two blocks, between an embedding and a head of which values are gathered.
Matrices declare(param::ParamStore& store) {
  Matrices out;
  store.begin_unit();
  store.declare(ParamSpec{"tokens", {67, kWidth}, Role::embedding, param::Init::normal, 0.1F});
  for (const char* block : {"0.", "1."}) {
    const std::string name = block;
    store.begin_unit();
    out.norm = store.declare(ParamSpec{name + "norm", {kWidth}, Role::norm, param::Init::ones, 0});
    out.all.push_back(store.gather_codes(store.declare(
        std::vector{matrix(name + "query", 48, kWidth), matrix(name + "key", 16, kWidth),
                    matrix(name + "value", 16, kWidth)})));
    store.declare(ParamSpec{name + "bias", {19}, Role::bias, param::Init::zeros, 0});
    out.all.push_back(store.gather_codes(store.declare(matrix(name + "down", kWidth, 160))));
  }
  store.begin_unit();
  store.declare(ParamSpec{"head", {67, kWidth}, Role::embedding, param::Init::normal, 0.1F});
  return out;
}

/// A rank whose parameters lie in memory full of NaN.
class Rank {
 public:
  Rank(const mesh::Mesh& mesh, int zero, std::size_t bucket_bytes)
      : store_({mesh.at().data, mesh.data_group().size()}),
        matrices(declare(store_)),
        strategy(dp::make_strategy(zero)) {
    store_.lay_out(bucket_bytes);
    parameters_.emplace("parameters", Device::cpu, std::size_t{1} << 22);
    gradients_.emplace("gradients", Device::cpu, std::size_t{1} << 22);
    strategy->allocate(store_, *parameters_, &*gradients_, {DType::f32, DType::bf16, DType::f32});
    strategy->connect({&mesh.data_group(), &mesh.tensor_group(), nullptr, nullptr});
    const View values = group().value().data;
    std::memset(values.raw(), 0xff, values.bytes());
  }
  [[nodiscard]] const param::ParamGroup& group() const { return store_.trained(); }
  /// All ranks agree in what element holds what.
  void set_masters(int round) {
    for (const param::ElementRange& range : strategy->updated_ranges()) {
      auto* const masters = group().master().at(range).data<float>();
      for (Dim i = 0; i < range.size; ++i) masters[i] = element(range.in_flat + i, round);
    }
  }
  static float element(Dim flat, int round) {
    const auto at = static_cast<float>(flat);
    return std::sin(0.37F * at + static_cast<float>(round)) * std::exp(std::sin(0.01F * at));
  }

 private:
  param::ParamStore store_;
  std::optional<Arena> parameters_, gradients_;

 public:
  Matrices matrices;
  std::unique_ptr<dp::ShardStrategy> strategy;
  Context ctx{Device::cpu};
};

std::uint16_t value_of(Dim flat, int round) { return to_bf16(Rank::element(flat, round)).bits; }

void expect_values(const View& value, Dim flat_begin, int round, const std::string& name) {
  const auto* const bits = static_cast<const std::uint16_t*>(value.raw());
  for (Dim i = 0; i < value.numel(); ++i) {
    ASSERT_EQ(bits[i], value_of(flat_begin + i, round)) << name << " " << i;
  }
}

/// The codes of the values that a rank alone would have.
void expect_codes(Context& ctx, const GatheredCodes& gathered, int round) {
  const param::Param& first = *gathered.matrix.members().front();
  const Shape shape = gathered.matrix.value().shape();
  std::vector<std::uint16_t> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = value_of(first.flat_begin + static_cast<Dim>(i), round);
  }
  std::vector<std::uint8_t> codes(values.size());
  std::vector<float> numbers(2);
  const ops::Fp8Matrix expected = {ops::Fp8Format::e4m3, ops::Fp8Scaling::tensor,
                                   View(codes.data(), DType::u8, Device::cpu, shape),
                                   View(numbers.data(), DType::f32, Device::cpu, {1}),
                                   View(numbers.data() + 1, DType::f32, Device::cpu, {1})};
  ops::fp8_quantize(ctx, CView(View(values.data(), DType::bf16, Device::cpu, shape)), expected, {});
  ASSERT_TRUE(gathered.codes) << first.name;
  EXPECT_EQ(std::memcmp(gathered.codes.raw(), codes.data(), codes.size()), 0) << first.name;
  EXPECT_EQ(std::memcmp(gathered.largest.raw(), numbers.data(), sizeof(float)), 0) << first.name;
  EXPECT_EQ(std::memcmp(gathered.scale.raw(), numbers.data() + 1, sizeof(float)), 0) << first.name;
}

class CodeGather : public testing::TestWithParam<std::size_t> {
 protected:
  CodeGather() { parallel_.data = world().size(); }
  mesh::ParallelConfig parallel_;
};

TEST_P(CodeGather, GivesTheBitsOfRoundingGatheredValues) {
  const mesh::Mesh mesh(world(), Device::cpu, parallel_, {});
  for (const int zero : {1, 2}) {
    Rank rank(mesh, zero, GetParam());
    for (int round = 0; round < 3; ++round) {
      SCOPED_TRACE("zero " + std::to_string(zero) + " round " + std::to_string(round));
      const std::vector<param::ElementRange>& ranges = rank.strategy->updated_ranges();
      for (std::size_t i = 0; i < ranges.size(); ++i) {  // as an update does
        const View to = rank.group().value().data.slice(ranges[i].in_flat, ranges[i].size);
        auto* const bits = static_cast<std::uint16_t*>(to.raw());
        for (Dim k = 0; k < ranges[i].size; ++k) bits[k] = value_of(ranges[i].in_flat + k, round);
        rank.strategy->after_update(rank.ctx, i);
      }
      for (int unit = 0; unit < 4; ++unit) rank.strategy->before_forward(rank.ctx, unit);
      for (const GatheredCodes* gathered : rank.matrices.all) {
        expect_codes(rank.ctx, *gathered, round);
      }
      for (const param::Param* param : rank.group().params()) {
        if (param->role != Role::matrix) {
          expect_values(param->value, param->flat_begin, round, param->name);
        }
      }
      if (round == 1) continue;  // a step after which nobody asks for values
      rank.strategy->wait_all(rank.ctx);
      for (const param::Param* param : rank.group().params()) {
        expect_values(param->value, param->flat_begin, round, param->name);
      }
    }
  }
}

TEST_P(CodeGather, FollowsMastersFromOutside) {
  const mesh::Mesh mesh(world(), Device::cpu, parallel_, {});
  Rank rank(mesh, 1, GetParam());
  rank.set_masters(5);
  rank.strategy->masters_changed(rank.ctx);
  for (const GatheredCodes* gathered : rank.matrices.all) expect_codes(rank.ctx, *gathered, 5);
  for (const param::Param* param : rank.group().params()) {
    expect_values(param->value, param->flat_begin, 5, param->name);
  }
}

TEST_P(CodeGather, SendsHalfTheBytesOfMatrices) {
  if (world().size() == 1) GTEST_SKIP() << "nothing is sent";
  const mesh::Mesh mesh(world(), Device::cpu, parallel_, {});
  Rank rank(mesh, 1, GetParam());
  const auto sent = [&] {
    const comm::Traffic& traffic = mesh.data_group().traffic();
    return traffic.bytes[static_cast<std::size_t>(comm::Call::all_gather)];
  };
  rank.set_masters(0);
  rank.strategy->masters_changed(rank.ctx);
  const std::int64_t before = sent();
  const std::vector<param::ElementRange>& ranges = rank.strategy->updated_ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) rank.strategy->after_update(rank.ctx, i);
  const std::int64_t step = sent() - before;
  std::int64_t matrices = 0;
  for (const GatheredCodes* gathered : rank.matrices.all) matrices += gathered->codes.numel();
  const std::int64_t values = 2 * rank.group().flat_size();
  // Small buckets of many ranks are filled up, and each rank's rest to that of the one with most.
  const std::int64_t filled = 64 * 32 * world().size();
  EXPECT_LT(step, values - matrices + filled);
  EXPECT_GT(step, values / 4);
  rank.strategy->wait_all(rank.ctx);
}

TEST_P(CodeGather, MakesNanOfAllThatShareAScaleWithOne) {
  const mesh::Mesh mesh(world(), Device::cpu, parallel_, {});
  Rank rank(mesh, 1, GetParam());
  rank.set_masters(0);
  const GatheredCodes& bad = *rank.matrices.all[1];
  const Dim at = bad.matrix.members().front()->flat_begin + 7;
  for (const param::ElementRange& range : rank.strategy->updated_ranges()) {
    if (at < range.in_flat || at >= range.in_flat + range.size) continue;
    rank.group().master().at(range).data<float>()[at - range.in_flat] =
        -std::numeric_limits<float>::quiet_NaN();
  }
  rank.strategy->masters_changed(rank.ctx);
  EXPECT_TRUE(std::isnan(bad.scale.data<float>()[0]));
  expect_codes(rank.ctx, *rank.matrices.all[0], 0);
}

INSTANTIATE_TEST_SUITE_P(BucketBytes, CodeGather,
                         testing::Values(std::size_t{1}, std::size_t{1} << 15,
                                         std::size_t{1} << 20));

}  // namespace
}  // namespace hyperslab
