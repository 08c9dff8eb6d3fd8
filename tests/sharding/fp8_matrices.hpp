// SPDX-License-Identifier: Apache-2.0
// Ranks of a data group whose blocks gather matrices as FP8 values, and what they must
// have then: the FP8 values and scales of rounding the values that a rank alone would have.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/ops/fp8.hpp"
#include "hyperslab/sharding/presence.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Two blocks, between an embedding and a head of which values are gathered.
struct Fp8Matrices {
  static constexpr Dim kWidth = 48;
  static constexpr int kUnits = 4;

  explicit Fp8Matrices(param::ParamStore& store) {
    table(store, "tokens");
    for (const char* block : {"0.", "1."}) {
      const std::string name = block;
      store.begin_unit();
      store.declare(
          param::ParamSpec{name + "norm", {kWidth}, param::Role::norm, param::Init::ones, 0});
      add(store, std::vector{matrix(name + "query", 48, kWidth), matrix(name + "key", 16, kWidth),
                             matrix(name + "value", 16, kWidth)});
      store.declare(
          param::ParamSpec{name + "bias", {19}, param::Role::bias, param::Init::zeros, 0});
      add(store, {matrix(name + "down", kWidth, 160)});
    }
    table(store, "head");
  }

  std::vector<const param::KeptFp8*> all;

 private:
  static param::ParamSpec matrix(const std::string& name, Dim rows, Dim columns) {
    return {name, {rows, columns}, param::Role::matrix, param::Init::normal, 0.1F};
  }
  static void table(param::ParamStore& store, const std::string& name) {
    store.begin_unit();
    store.declare(
        param::ParamSpec{name, {67, kWidth}, param::Role::embedding, param::Init::normal, 0.1F});
  }
  void add(param::ParamStore& store, const std::vector<param::ParamSpec>& specs) {
    all.push_back(store.keep_fp8(store.declare(specs), 0, true));
  }
};

/// A rank on the context's device; all bits of its values are ones at first: NaN.
class Fp8Rank {
 public:
  Fp8Rank(Context& ctx, const mesh::Mesh& mesh, int zero, std::size_t bucket_bytes)
      : ctx_(ctx),
        store_(mesh.position()),
        presence_(sharding::zero(zero)),
        parameters_("parameters", ctx.device(), std::size_t{1} << 22),
        gradients_("gradients", ctx.device(), std::size_t{1} << 22),
        matrices_(store_) {
    store_.lay_out(bucket_bytes);
    presence_.allocate(store_, {parameters_, host_, &gradients_},
                       {DType::f32, DType::bf16, DType::f32});
    presence_.connect(mesh);
    const View values = group().value().data;
    Tensor ones(Device::cpu, values.dtype(), values.shape());
    std::memset(ones.view().raw(), 0xff, ones.view().bytes());
    put(ones.view(), values);
  }
  [[nodiscard]] const param::ParamGroup& group() const { return store_.trained(); }
  [[nodiscard]] sharding::Presence& presence() { return presence_; }
  [[nodiscard]] const std::vector<const param::KeptFp8*>& matrices() const { return matrices_.all; }

  /// Element `flat` of the parameters after round `round`, on all ranks; `bad`: one that is NaN.
  static float element(Dim flat, int round, Dim bad = -1) {
    if (flat == bad) return -std::numeric_limits<float>::quiet_NaN();
    const auto at = static_cast<float>(flat);
    return std::sin(0.37F * at + static_cast<float>(round)) * std::exp(std::sin(0.01F * at));
  }
  void set_masters(int round, Dim bad = -1) {
    for (const param::ElementRange& range : presence_.values().updated_ranges()) {
      Tensor masters(Device::cpu, DType::f32, {range.size});
      for (Dim i = 0; i < range.size; ++i) {
        masters.view().data<float>()[i] = element(range.in_flat + i, round, bad);
      }
      put(masters.view(), group().master().at(range));
    }
  }
  /// Writes the values of this rank's shards, as an update does, and starts to gather them.
  void update(int round) {
    const std::vector<param::ElementRange>& ranges = presence_.values().updated_ranges();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const Tensor mine = values(ranges[i].in_flat, {ranges[i].size}, round);
      put(mine.view(), group().value().at(ranges[i]));
      presence_.values().after_update(ctx_, i);
    }
  }

  void expect_fp8_values(const param::KeptFp8& gathered, int round, Dim bad = -1) {
    const param::Param& first = *gathered.matrix.members().front();
    SCOPED_TRACE(first.name);
    ASSERT_TRUE(gathered.values);
    const Shape shape = gathered.matrix.shape();
    const Tensor alone = values(first.flat_begin, shape, round, bad);
    Tensor values(Device::cpu, DType::u8, shape);
    Tensor amax(Device::cpu, DType::f32, {1});
    Tensor scale(Device::cpu, DType::f32, {1});
    Context cpu(Device::cpu);
    ops::fp8_quantize(
        cpu, alone.view(),
        {ops::Fp8Format::e4m3, ops::Fp8Scaling::tensor, values.view(), amax.view(), scale.view()},
        {});
    expect_bits(gathered.values, values.view());
    if (bad >= 0) {  // NaN has many
      EXPECT_TRUE(std::isnan(to_doubles(fetch(gathered.scale).view())[0]));
    } else {
      expect_bits(gathered.amax, amax.view());
      expect_bits(gathered.scale, scale.view());
    }
  }
  void expect_values(const param::Param& param, int round) {
    SCOPED_TRACE(param.name);
    expect_bits(param.value, values(param.flat_begin, param.value.shape(), round).view());
  }

 private:
  static Tensor values(Dim flat, const Shape& shape, int round, Dim bad = -1) {
    Tensor out(Device::cpu, DType::bf16, shape);
    for (Dim i = 0; i < shape.numel(); ++i) {
      out.view().data<bf16>()[i] = to_bf16(element(flat + i, round, bad));
    }
    return out;
  }
  void put(CView from, View to) {
    copy(ctx_, from, to);
    synchronize(ctx_);  // before `from` goes
  }
  Tensor fetch(CView view) {
    Tensor out(Device::cpu, view.dtype(), view.shape());
    copy(ctx_, view, out.view());
    synchronize(ctx_);
    return out;
  }
  void expect_bits(CView found, CView expected) {
    const Tensor here = fetch(found);
    EXPECT_EQ(std::memcmp(here.view().raw(), expected.raw(), expected.bytes()), 0);
  }

  Context& ctx_;
  param::ParamStore store_;
  sharding::Presence presence_;
  Arena parameters_, gradients_;
  Arena host_{"host"};
  Fp8Matrices matrices_;
};

/// Three updates, after the second of which no one asks for values.
inline void expect_bits_of_rounding(Context& ctx, const mesh::Mesh& mesh, int zero,
                                    std::size_t bucket_bytes) {
  Fp8Rank rank(ctx, mesh, zero, bucket_bytes);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE("zero " + std::to_string(zero) + " round " + std::to_string(round));
    rank.update(round);
    for (int unit = 0; unit < Fp8Matrices::kUnits; ++unit) {
      rank.presence().values().before(ctx, unit);
    }
    for (const param::KeptFp8* gathered : rank.matrices()) {
      rank.expect_fp8_values(*gathered, round);
    }
    for (const param::Param* param : rank.group().params()) {
      if (param->role != param::Role::matrix) rank.expect_values(*param, round);
    }
    if (round == 1) continue;
    rank.presence().values().complete(ctx);
    for (const param::Param* param : rank.group().params()) {
      if (param->value.raw() != nullptr) {
        rank.expect_values(*param, round);
      } else {  // its FP8 values are in a room
        EXPECT_TRUE(zero == 3 && param->role == param::Role::matrix) << param->name;
      }
    }
  }
}

inline void expect_fp8_values_of_masters(Context& ctx, const mesh::Mesh& mesh,
                                         std::size_t bucket_bytes) {
  Fp8Rank rank(ctx, mesh, 1, bucket_bytes);
  rank.set_masters(5);
  rank.presence().values().masters_changed(ctx);
  for (const param::KeptFp8* gathered : rank.matrices()) rank.expect_fp8_values(*gathered, 5);
  rank.presence().values().complete(ctx);
  for (const param::Param* param : rank.group().params()) rank.expect_values(*param, 5);
}

inline void expect_nan_in_one_matrix(Context& ctx, const mesh::Mesh& mesh,
                                     std::size_t bucket_bytes) {
  Fp8Rank rank(ctx, mesh, 1, bucket_bytes);
  const param::KeptFp8& bad = *rank.matrices()[1];
  const Dim at = bad.matrix.members().front()->flat_begin + 7;
  rank.set_masters(0, at);
  rank.presence().values().masters_changed(ctx);
  rank.expect_fp8_values(bad, 0, at);
  rank.expect_fp8_values(*rank.matrices()[0], 0);
  rank.expect_fp8_values(*rank.matrices()[2], 0);
}

}  // namespace hyperslab::test
