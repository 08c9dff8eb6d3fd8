// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"

#include <cmath>
#include <numeric>

#include "hyperslab/ops/attention.hpp"
#include "ops/shards.hpp"
#include "problem.hpp"
#include "support/first_keys.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

class Embedding : public DevicesTest {};

/// The last columns of a matrix.
Tensor last_columns(const Tensor& matrix, Dim count) {
  const auto [B, T] = matrix.view().dims<2>("matrix");
  Tensor out(Device::cpu, DType::i32, {B, count});
  for (Dim b = 0; b < B; ++b) {
    const auto row = matrix.view().slice(b, 1).span<std::int32_t>();
    std::ranges::copy(row.last(static_cast<std::size_t>(count)),
                      out.view().slice(b, 1).span<std::int32_t>().begin());
  }
  return out;
}

using Ids = std::vector<std::int32_t>;

Ids tokens_of(Dim count, Dim V, Dim stride) {
  Ids ids(static_cast<std::size_t>(count));
  for (Dim i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i * stride % V);
  return ids;
}

Tensor order_of(const Ids& ids) {
  Ids order(ids.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int32_t index) { return ids[index]; });
  return int_tensor({static_cast<Dim>(ids.size())}, order);
}

TEST_F(Embedding, Forward) {
  for (const DType dtype : compute_types()) {
    for (const Dim C : {1, 13, 64, 200}) {
      for (const bool with_positions : {false, true}) {
        Problem problem(dtype);
        problem.fixed(int_tensor({3, 7}, tokens_of(21, 50, 17)))
            .input(random_tensor(dtype, {50, C}, 1))
            .output(dtype, {3, 7, C});
        if (with_positions) problem.input(random_tensor(dtype, {12, C}, 2));
        problem.expect_match(
            [=](Context& ctx, const Views& v) {
              embedding_forward(ctx, v[0],
                                {.table = v[1],
                                 .shard = whole_vocabulary(50),
                                 .positions = with_positions ? CView(v[3]) : CView(),
                                 .first_position = with_positions ? 4 : 0},
                                1.5F, v[2]);
            },
            "embedding_forward");
      }
    }
  }
}

TEST_F(Embedding, ARankHasItsOwnRowsAlone) {
  for (const DType dtype : compute_types()) {
    for (const Sharding& sharding : awkward_shardings()) {
      const Ids ids = tokens_of(300, sharding.V, 1);
      for (Dim rank = 0; rank < sharding.ranks; ++rank) {
        const VocabularyShard shard = sharding.of(rank);
        for (const Dim C : {5, 24}) {
          Problem forward(dtype);
          forward.fixed(int_tensor({3, 100}, ids))
              .input(random_tensor(dtype, {sharding.size, C}, 1))
              .input(random_tensor(dtype, {100, C}, 2))
              .output(dtype, {3, 100, C})
              .output(dtype, {3, 100, C});
          forward.expect_match(
              [=](Context& ctx, const Views& v) {
                embedding_forward(ctx, v[0], {.table = v[1], .shard = shard}, 1.5F, v[3]);
                embedding_forward(ctx, v[0], {.table = v[1], .shard = shard, .positions = v[2]},
                                  1.5F, v[4]);
              },
              "embedding_forward of a shard");
          for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
            Problem backward(dtype);
            backward.fixed(int_tensor({3, 100}, ids))
                .fixed(order_of(ids))
                .input(random_tensor(dtype, {3, 100, C}, 1))
                .in_out(accumulate == Accumulate::yes
                            ? random_tensor(DType::f32, {sharding.size, C}, 2)
                            : poisoned(DType::f32, {sharding.size, C}));
            backward.expect_match(
                [=](Context& ctx, const Views& v) {
                  embedding_backward(ctx, {v[0], v[1]}, v[2], shard, 0.5F, accumulate, v[3]);
                },
                "embedding_backward of a shard");
          }
        }
      }
    }
  }
}

TEST_F(Embedding, BackwardSumsRunsOfAnyLength) {
  struct Case {
    Dim T, V, stride;
  };
  // All different; few tokens, so long runs; one token alone; runs of 63, 64 and 65.
  for (const auto& [T, V, stride] :
       std::vector<Case>{{1, 3, 1}, {30, 101, 1}, {700, 5, 3}, {500, 1, 1}, {96, 3, 1}}) {
    for (const DType dtype : compute_types()) {
      for (const Dim C : {1, 8, 37, 520}) {
        for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
          Ids ids = tokens_of(2 * T, V, stride);
          if (T == 96) ids[1] = 0;  // runs of 65, 63 and 64
          Problem problem(dtype);
          problem.fixed(int_tensor({2, T}, ids))
              .fixed(order_of(ids))
              .input(random_tensor(dtype, {2, T, C}, 1))
              .in_out(accumulate == Accumulate::yes ? random_tensor(DType::f32, {V, C}, 2)
                                                    : poisoned(DType::f32, {V, C}));
          const auto call = [=, V = V](Context& ctx, const Views& v) {
            embedding_backward(ctx, {v[0], v[1]}, v[2], whole_vocabulary(V), 0.5F, accumulate,
                               v[3]);
          };
          problem.expect_match(call, "embedding_backward");
          const auto oracle = problem.on_oracle(call);
          problem.on_each(call, [&](const Results& found) {
            EXPECT_LE(relative_difference(found[3].view(), oracle[3].view()), tolerance(DType::f32))
                << "sums are f32 whatever dy is";
          });
        }
      }
    }
  }
}

TEST_F(Embedding, PositionsBeginAgainWithEachDocument) {
  for (const DType dtype : compute_types()) {
    for (const Dim C : {1, 24, 200}) {
      for (const Dim document : {1, 4, 11}) {
        Problem forward(dtype);
        forward.fixed(int_tensor({3, 9}, tokens_of(27, 50, 17)))
            .input(random_tensor(dtype, {50, C}, 1))
            .input(random_tensor(dtype, {12, C}, 2))
            .fixed(first_keys(3, 9, document))
            .output(dtype, {3, 9, C});
        forward.expect_match(
            [](Context& ctx, const Views& v) {
              embedding_forward(ctx, v[0],
                                {.table = v[1],
                                 .shard = whole_vocabulary(50),
                                 .positions = v[2],
                                 .first_keys = v[3]},
                                1.5F, v[4]);
            },
            "embedding_forward of documents");
        Problem backward(dtype);
        backward.input(random_tensor(dtype, {3, 9, C}, 1))
            .fixed(first_keys(3, 9, document))
            .in_out(random_tensor(DType::f32, {12, C}, 2));
        backward.expect_match(
            [](Context& ctx, const Views& v) {
              position_backward(ctx, v[0], 0, v[1], Accumulate::yes, v[2]);
            },
            "position_backward of documents");
        // The last five of the nine tokens.
        Problem of_part(dtype);
        of_part.input(random_tensor(dtype, {3, 5, C}, 1))
            .fixed(last_columns(first_keys(3, 9, document), 5))
            .in_out(poisoned(DType::f32, {12, C}));
        of_part.expect_match(
            [](Context& ctx, const Views& v) {
              position_backward(ctx, v[0], 4, v[1], Accumulate::no, v[2]);
            },
            "position_backward of a part of a sample");
      }
    }
  }
}

TEST_F(Embedding, PositionBackward) {
  for (const DType dtype : compute_types()) {
    for (const Dim C : {1, 24, 37}) {
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        Problem problem(dtype);
        problem.input(random_tensor(dtype, {5, 11, C}, 1))
            .in_out(accumulate == Accumulate::yes ? random_tensor(DType::f32, {16, C}, 2)
                                                  : poisoned(DType::f32, {16, C}));
        for (const Dim first : {0, 5}) {
          problem.expect_match(
              [=](Context& ctx, const Views& v) {
                position_backward(ctx, v[0], first, {}, accumulate, v[1]);
              },
              "position_backward");
        }
      }
    }
  }
}

TEST_F(Embedding, Tables) {
  for (const DType dtype : compute_types()) {
    Problem sinusoids(dtype);
    sinusoids.output(dtype, {300, 37});
    sinusoids.expect_match([](Context& ctx, const Views& v) { sinusoidal_table(ctx, v[0]); },
                           "sinusoids");
  }
  Problem angles(DType::f32);
  angles.output(DType::f32, {3000, 24}).output(DType::f32, {3000, 24});
  angles.expect_match(
      [](Context& ctx, const Views& v) {
        rope_table(ctx, rope_frequencies(10000, 24), 1.25, v[0], v[1]);
      },
      "angles");
}

TEST_F(Embedding, Rope) {
  for (const DType dtype : compute_types()) {
    for (const HeadLayout& layout :
         std::vector<HeadLayout>{{1, 1, 2}, {3, 3, 6}, {4, 2, 64}, {8, 1, 16}}) {
      for (const Rotation rotation : {Rotation::forward, Rotation::inverse}) {
        const Shape table = {20, layout.head_width / 2};
        Problem problem(dtype);
        problem.input(random_tensor(DType::f32, table, 1))
            .input(random_tensor(DType::f32, table, 2))
            .in_out(random_tensor(dtype, {2, 13, layout.packed_width()}, 3));
        problem.expect_match(
            [=](Context& ctx, const Views& v) { rope(ctx, layout, v[0], v[1], 5, rotation, v[2]); },
            "rope");
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
