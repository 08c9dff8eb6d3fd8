// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"

#include <algorithm>
#include <numeric>

#include "finite_difference.hpp"
#include "ops_test.hpp"
#include "shards.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

class EmbeddingOps : public OpsTest {};

VocabularyShard whole(const Tensor& table) { return whole_vocabulary(table.view().shape()[0]); }

Tensor order_of(CView tokens) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(tokens.numel()));
  std::iota(order.begin(), order.end(), 0);
  const auto* id = tokens.data<std::int32_t>();
  std::ranges::stable_sort(order, {}, [=](std::int32_t index) { return id[index]; });
  return int_tensor({tokens.numel()}, order);
}

TEST_F(EmbeddingOps, ForwardByHand) {
  const Tensor tokens = int_tensor({2, 2}, {2, 0, 1, 2});
  const Tensor table = tensor_of(DType::f32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor positions = tensor_of(DType::f32, {3, 2}, {100, 100, 10, 20, 30, 40});
  Tensor y = poisoned(DType::f32, {2, 2, 2});

  embedding_forward(ctx, tokens.view(), {.table = table.view(), .shard = whole(table)}, 1,
                    y.view());
  expect_values(y.view(), {5, 6, 1, 2, 3, 4, 5, 6});

  embedding_forward(ctx, tokens.view(),
                    {.table = table.view(),
                     .shard = whole(table),
                     .positions = positions.view(),
                     .first_position = 1},
                    2, y.view());
  expect_values(y.view(), {20, 32, 32, 44, 16, 28, 40, 52});
}

TEST_F(EmbeddingOps, GradientsMatchDifferences) {
  const Tensor tokens = int_tensor({2, 3}, {4, 1, 4, 0, 4, 2});
  Tensor table = random_tensor(DType::f64, {5, 3}, 1);
  Tensor positions = random_tensor(DType::f64, {4, 3}, 2);
  const Tensor dy = random_tensor(DType::f64, {2, 3, 3}, 3);
  Tensor y = poisoned(DType::f64, {2, 3, 3});
  Tensor dtable = poisoned(DType::f64, {5, 3});
  Tensor dpositions = poisoned(DType::f64, {4, 3});
  const auto value = [&] {
    embedding_forward(ctx, tokens.view(),
                      {.table = table.view(), .shard = whole(table), .positions = positions.view()},
                      0.5F, y.view());
    return inner_product(dy.view(), y.view());
  };

  embedding_backward(ctx, {tokens.view(), order_of(tokens.view()).view()}, dy.view(), whole(dtable),
                     0.5F, Accumulate::no, dtable.view());
  position_backward(ctx, dy.view(), 0, {}, Accumulate::no, dpositions.view());

  expect_gradient("dtable", table.view(), dtable.view(), value);
  expect_gradient("dpositions", positions.view(), dpositions.view(), value);
}

TEST_F(EmbeddingOps, PositionsBeginAgainWithEachDocument) {
  const Tensor tokens = int_tensor({2, 4}, {0, 0, 0, 0, 0, 0, 0, 0});
  const Tensor table = tensor_of(DType::f32, {1, 1}, {0});
  const Tensor positions = tensor_of(DType::f32, {5, 1}, {1, 2, 3, 4, 5});
  const Tensor first_keys = int_tensor({2, 4}, {0, 0, 2, 3, 0, 1, 1, 1});
  Tensor y = poisoned(DType::f32, {2, 4, 1});

  embedding_forward(ctx, tokens.view(),
                    {.table = table.view(),
                     .shard = whole(table),
                     .positions = positions.view(),
                     .first_keys = first_keys.view()},
                    1, y.view());
  expect_values(y.view(), {1, 2, 1, 1, 1, 1, 2, 3});

  const Tensor dy = tensor_of(DType::f32, {2, 4, 1}, {1, 2, 4, 8, 16, 32, 64, 128});
  Tensor dpositions = poisoned(DType::f32, {5, 1});
  position_backward(ctx, dy.view(), 0, first_keys.view(), Accumulate::no, dpositions.view());
  expect_values(dpositions.view(), {1 + 4 + 8 + 16 + 32, 2 + 64, 128, 0, 0});
  position_backward(ctx, dy.view(), 0, first_keys.view(), Accumulate::yes, dpositions.view());
  expect_values(dpositions.view(), {2 * 61, 2 * 66, 2 * 128, 0, 0});
}

TEST_F(EmbeddingOps, PositionsOfAPartOfASampleCountFromItsDocuments) {
  // The last two of the four tokens of the samples above.
  const Tensor tokens = int_tensor({2, 2}, {0, 0, 0, 0});
  const Tensor table = tensor_of(DType::f32, {1, 1}, {0});
  const Tensor positions = tensor_of(DType::f32, {5, 1}, {1, 2, 3, 4, 5});
  const Tensor first_keys = int_tensor({2, 2}, {2, 3, 1, 1});
  Tensor y = poisoned(DType::f32, {2, 2, 1});
  embedding_forward(ctx, tokens.view(),
                    {.table = table.view(),
                     .shard = whole(table),
                     .positions = positions.view(),
                     .first_position = 2,
                     .first_keys = first_keys.view()},
                    1, y.view());
  expect_values(y.view(), {1, 1, 2, 3});

  const Tensor dy = tensor_of(DType::f32, {2, 2, 1}, {4, 8, 64, 128});
  Tensor dpositions = poisoned(DType::f32, {5, 1});
  position_backward(ctx, dy.view(), 2, first_keys.view(), Accumulate::no, dpositions.view());
  expect_values(dpositions.view(), {4 + 8, 64, 128, 0, 0});
  position_backward(ctx, dy.view(), 2, {}, Accumulate::no, dpositions.view());
  expect_values(dpositions.view(), {0, 0, 4 + 64, 8 + 128, 0});
  expect_error_naming("position_backward dpositions", [&] {
    position_backward(ctx, dy.view(), 4, {}, Accumulate::no, dpositions.view());
  });
}

TEST_F(EmbeddingOps, BackwardDoesNotDependOnTheNumberOfChunks) {
  std::vector<std::int32_t> ids(4096);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>((i * i * 7919) % 101);
  }
  const Tensor tokens = int_tensor({4, 1024}, ids);
  const Tensor order = order_of(tokens.view());
  const Tensor dy = random_tensor(DType::f32, {4, 1024, 5}, 3);
  // The documented order is ascending by index, one element at a time.
  Tensor expected = filled_tensor(DType::f32, {101, 5}, 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (Dim c = 0; c < 5; ++c) {
      expected.view().data<float>()[ids[i] * 5 + c] +=
          dy.view().data<float>()[static_cast<Dim>(i) * 5 + c];
    }
  }
  Tensor dtable = poisoned(DType::f32, {101, 5});

  embedding_backward(ctx, {tokens.view(), order.view()}, dy.view(), whole(dtable), 1,
                     Accumulate::no, dtable.view());

  EXPECT_TRUE(same_bits(dtable.view(), expected.view()));
}

TEST_F(EmbeddingOps, PositionBackwardAdds) {
  const Tensor dy = random_tensor(DType::f64, {2, 3, 4}, 3);
  Tensor once = poisoned(DType::f64, {5, 4});
  Tensor twice = poisoned(DType::f64, {5, 4});

  position_backward(ctx, dy.view(), 0, {}, Accumulate::no, once.view());
  position_backward(ctx, dy.view(), 0, {}, Accumulate::no, twice.view());
  position_backward(ctx, dy.view(), 0, {}, Accumulate::yes, twice.view());

  auto doubled = to_doubles(once.view());
  for (double& v : doubled) v *= 2;
  expect_values(twice.view(), doubled, 1e-12);
  expect_values(once.view().slice(3, 2), std::vector<double>(8, 0.0), 0);
}

TEST_F(EmbeddingOps, EmptyBatchesClear) {
  const Tensor tokens(Device::cpu, DType::i32, {0, 4});
  const Tensor order(Device::cpu, DType::i32, {0});
  const Tensor dy(Device::cpu, DType::f32, {0, 4, 3});
  Tensor dtable = poisoned(DType::f32, {5, 3});

  embedding_backward(ctx, {tokens.view(), order.view()}, dy.view(), whole(dtable), 1,
                     Accumulate::no, dtable.view());

  expect_values(dtable.view(), std::vector<double>(15, 0.0), 0);
}

constexpr Dim kWidth = 19;

/// Rows of `table` as a rank holds them; padding is poisoned.
Tensor rows_of(const Tensor& table, const VocabularyShard& shard, Dim rows) {
  Tensor out = poisoned(DType::f32, {rows, kWidth});
  const CView here = table.view().slice(shard.count == 0 ? 0 : shard.first, shard.count);
  std::copy_n(here.data<float>(), here.numel(), out.view().data<float>());
  return out;
}

TEST_F(EmbeddingOps, RanksThatShareAVocabularyAddUp) {
  for (const Sharding& sharding : awkward_shardings()) {
    const auto [V, rows, ranks] = sharding;
    std::vector<std::int32_t> ids(14);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 5 % V);
    const Tensor tokens = int_tensor({2, 7}, ids);
    const Tensor table = random_tensor(DType::f32, {V, kWidth}, 1);
    const Tensor positions = random_tensor(DType::f32, {9, kWidth}, 2);
    Tensor expected = poisoned(DType::f32, {2, 7, kWidth});
    embedding_forward(ctx, tokens.view(),
                      {.table = table.view(),
                       .shard = whole(table),
                       .positions = positions.view(),
                       .first_position = 2},
                      1.5F, expected.view());
    std::vector<double> sum(static_cast<std::size_t>(expected.view().numel()), 0.0);

    for (Dim rank = 0; rank < ranks; ++rank) {
      const VocabularyShard shard = sharding.of(rank);
      Tensor y = poisoned(DType::f32, {2, 7, kWidth});
      embedding_forward(ctx, tokens.view(),
                        {.table = rows_of(table, shard, rows).view(),
                         .shard = shard,
                         .positions = rank == 0 ? CView(positions.view()) : CView(),
                         .first_position = 2},
                        1.5F, y.view());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const auto here = static_cast<double>(y.view().data<float>()[i]);
        const Dim token = ids[i / kWidth];
        if (rank > 0 && (token < shard.first || token >= shard.first + shard.count)) {
          ASSERT_EQ(here, 0) << "of another rank's token nothing is left";
        }
        sum[i] += here;
      }
    }

    expect_values(expected.view(), sum, 1e-6);
  }
}

TEST_F(EmbeddingOps, ARankHasTheGradientOfItsRowsAlone) {
  for (const Sharding& sharding : awkward_shardings()) {
    const auto [V, rows, ranks] = sharding;
    std::vector<std::int32_t> ids(700);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % V);
    const Tensor tokens = int_tensor({7, 100}, ids);
    const Tensor order = order_of(tokens.view());
    const Tensor dy = random_tensor(DType::f32, {7, 100, kWidth}, 3);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const bool adds = accumulate == Accumulate::yes;
      const auto before = [&](Dim size) {
        return adds ? filled_tensor(DType::f32, {size, kWidth}, 2)
                    : poisoned(DType::f32, {size, kWidth});
      };
      Tensor expected = before(V);
      embedding_backward(ctx, {tokens.view(), order.view()}, dy.view(), whole(expected), 0.5F,
                         accumulate, expected.view());

      for (Dim rank = 0; rank < ranks; ++rank) {
        const VocabularyShard shard = sharding.of(rank);
        Tensor dtable = before(rows);
        embedding_backward(ctx, {tokens.view(), order.view()}, dy.view(), shard, 0.5F, accumulate,
                           dtable.view());

        const Dim first = shard.count == 0 ? 0 : shard.first;
        EXPECT_TRUE(same_bits(dtable.view().slice(0, shard.count),
                              expected.view().slice(first, shard.count)));
        const CView padding = dtable.view().slice(shard.count, rows - shard.count);
        const std::vector<double> left(static_cast<std::size_t>(padding.numel()), adds ? 2.0 : 0.0);
        expect_values(padding, left, 0);
      }
    }
  }
}

TEST_F(EmbeddingOps, PaddingStandsForNoTokenAlsoIfMoreTokensFollow) {
  const VocabularyShard shard = {1, 2, 6};
  const Tensor tokens = int_tensor({1, 4}, {2, 3, 4, 0});
  const Tensor table = tensor_of(DType::f32, {4, 1}, {10, 20, 30, 40});
  const Tensor dy = tensor_of(DType::f32, {1, 4, 1}, {1, 2, 3, 4});
  Tensor y = poisoned(DType::f32, {1, 4, 1});
  Tensor dtable = poisoned(DType::f32, {4, 1});

  embedding_forward(ctx, tokens.view(), {.table = table.view(), .shard = shard}, 1, y.view());
  embedding_backward(ctx, {tokens.view(), order_of(tokens.view()).view()}, dy.view(), shard, 1,
                     Accumulate::no, dtable.view());

  expect_values(y.view(), {20, 0, 0, 0});
  expect_values(dtable.view(), {0, 1, 0, 0});
}

TEST_F(EmbeddingOps, SinusoidalTableByHand) {
  Tensor table = poisoned(DType::f64, {3, 4});

  sinusoidal_table(ctx, table.view());

  expect_values(table.view(),
                {0, 1, 0, 1, std::sin(1.0), std::cos(1.0), std::sin(0.01), std::cos(0.01),
                 std::sin(2.0), std::cos(2.0), std::sin(0.02), std::cos(0.02)},
                1e-12);
}

TEST_F(EmbeddingOps, WrongOperandsAreNamed) {
  const Tensor tokens = int_tensor({1, 2}, {0, 3});
  const Tensor table = filled_tensor(DType::f32, {3, 2}, 0);
  const Tensor positions = filled_tensor(DType::f32, {2, 2}, 0);
  Tensor y = filled_tensor(DType::f32, {1, 2, 2}, 0);
  Tensor dtable = filled_tensor(DType::f32, {4, 2}, 0);
  expect_error_naming("embedding_forward tokens", [&] {
    embedding_forward(ctx, tokens.view(), {.table = table.view(), .shard = whole(table)}, 1,
                      y.view());
  });
  expect_error_naming("embedding_forward tokens: index 1 holds token 3, expected less than 2", [&] {
    embedding_forward(ctx, tokens.view(), {.table = table.view(), .shard = {0, 1, 2}}, 1, y.view());
  });
  expect_error_naming("embedding_forward shard: tokens 1+3 of 4", [&] {
    embedding_forward(ctx, tokens.view(), {.table = table.view().slice(0, 2), .shard = {1, 3, 4}},
                      1, y.view());
  });
  expect_error_naming("embedding_backward shard: tokens 2+3 of 4", [&] {
    embedding_backward(ctx, {tokens.view(), int_tensor({2}, {0, 1}).view()}, y.view(), {2, 3, 4}, 1,
                       Accumulate::no, dtable.view());
  });
  expect_error_naming("embedding_forward first_position", [&] {
    embedding_forward(ctx, tokens.view(),
                      {.table = dtable.view(),
                       .shard = whole(dtable),
                       .positions = positions.view(),
                       .first_position = 1},
                      1, y.view());
  });
  expect_error_naming("embedding_forward y", [&] {
    embedding_forward(ctx, tokens.view(), {.table = dtable.view(), .shard = whole(dtable)}, 1,
                      dtable.view());
  });
  expect_error_naming("embedding_backward sort_index", [&] {
    embedding_backward(ctx, {tokens.view(), int_tensor({2}, {1, 0}).view()}, y.view(),
                       whole(dtable), 1, Accumulate::no, dtable.view());
  });
  expect_error_naming("embedding_backward dy", [&] {
    embedding_backward(ctx, {tokens.view(), int_tensor({2}, {0, 1}).view()}, table.view(),
                       whole(dtable), 1, Accumulate::no, dtable.view());
  });
  const Tensor other_keys = int_tensor({2, 2}, {0, 0, 0, 0});
  expect_error_naming("embedding_forward first_keys", [&] {
    embedding_forward(ctx, tokens.view(),
                      {.table = table.view(),
                       .shard = whole(table),
                       .positions = table.view(),
                       .first_keys = other_keys.view()},
                      1, y.view());
  });
  expect_error_naming("position_backward first_keys", [&] {
    position_backward(ctx, y.view(), 0, other_keys.view(), Accumulate::no, dtable.view());
  });
  expect_error_naming("position_backward dpositions", [&] {
    position_backward(ctx, y.view(), 0, {}, Accumulate::no, dtable.view().slice(0, 1));
  });
}

}  // namespace
}  // namespace hyperslab::ops
