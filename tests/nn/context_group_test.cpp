// SPDX-License-Identifier: Apache-2.0
// Rows to heads and back, on the ranks of a context group.
#include "hyperslab/nn/context_group.hpp"

#include <gtest/gtest.h>

#include <array>

#include "ops/ops_test.hpp"
#include "support/mpi_world.hpp"

namespace hyperslab::nn {
namespace {

using namespace hyperslab::test;

constexpr Dim kSamples = 3;
constexpr Dim kTokens = 2;  // of a rank
constexpr std::array<Dim, 3> kWidths = {16, 8, 8};
constexpr Dim kWidth = 32;

class ContextRanks : public OpsTest {
 protected:
  /// The value of a column of a token of a sample, of all ranks.
  static double value(Dim b, Dim t, Dim column) {
    return static_cast<double>((b * 100 + t) * kWidth + column);
  }
  Tensor rows() const {
    std::vector<double> values;
    for (Dim b = 0; b < kSamples; ++b) {
      for (Dim t = 0; t < kTokens; ++t) {
        for (Dim c = 0; c < kWidth; ++c) values.push_back(value(b, first_ + t, c));
      }
    }
    return tensor_of(DType::f32, {kSamples, kTokens, kWidth}, values);
  }
  /// This rank's share of each section, of all tokens.
  Tensor heads() const {
    std::vector<double> values;
    for (Dim b = 0; b < kSamples; ++b) {
      for (Dim t = 0; t < ranks_ * kTokens; ++t) {
        Dim begin = 0;
        for (const Dim width : kWidths) {
          const Dim part = width / ranks_;
          for (Dim c = 0; c < part; ++c) {
            values.push_back(value(b, t, begin + context_.rank() * part + c));
          }
          begin += width;
        }
      }
    }
    return tensor_of(DType::f32, {kSamples, ranks_ * kTokens, kWidth / ranks_}, values);
  }

  std::unique_ptr<comm::Communicator> group_ =
      world().communicator(Device::cpu, comm::GroupRole::context);
  ContextGroup context_{group_.get()};
  Dim ranks_ = context_.size();
  Dim first_ = context_.first_token(kTokens);
};

TEST_F(ContextRanks, RowsTravelToHeadsAndBack) {
  if (context_.is_alone()) GTEST_SKIP() << "one rank has all";
  Tensor sent = poisoned(DType::f32, {kSamples * kTokens * kWidth});
  Tensor received = poisoned(DType::f32, {kSamples * kTokens * kWidth});
  const ContextGroup::Buffers buffers = {sent.view(), received.view()};
  Tensor found = poisoned(DType::f32, heads().view().shape());
  Tensor back = poisoned(DType::f32, rows().view().shape());

  context_.to_heads(ctx, kWidths, rows().view(), buffers, found.view());
  EXPECT_EQ(to_doubles(found.view()), to_doubles(heads().view()));
  context_.to_rows(ctx, kWidths, found.view(), buffers, back.view());
  EXPECT_EQ(to_doubles(back.view()), to_doubles(rows().view()));

  const auto call = static_cast<std::size_t>(comm::Call::all_to_all);
  EXPECT_EQ(group_->traffic().calls[call], 2);
  EXPECT_EQ(group_->traffic().bytes[call], 2 * kSamples * kTokens * kWidth * 4);
}

TEST_F(ContextRanks, OneRankSendsNothing) {
  const ContextGroup alone;
  Tensor x = rows();
  alone.to_heads(ctx, kWidths, x.view(), {}, x.view());
  alone.to_rows(ctx, kWidths, x.view(), {}, x.view());
  EXPECT_EQ(to_doubles(x.view()), to_doubles(rows().view()));
  EXPECT_EQ(alone.all_tokens(7), 7);
  EXPECT_EQ(alone.first_token(7), 0);
  EXPECT_EQ(context_.all_tokens(7), 7 * ranks_);
  EXPECT_EQ(context_.share({16, 8, 4}).packed_width(), (16 + 2 * 8) * 4 / ranks_);
}

}  // namespace
}  // namespace hyperslab::nn
