// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"
#include "quantized_case.hpp"
#include "shards.hpp"
#include "support/first_keys.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

constexpr Dim kTokens = 21;
constexpr Dim kWidth = 192;

class QuantizedEmbedding : public OpsTest {
 protected:
  StoredMatrix quantized(const GroupedFormat& format, Dim rows) {
    StoredMatrix out = stored_matrix(format, rows, kWidth);
    quantize(ctx, random_tensor(DType::f32, {rows, kWidth}, 5).view(), out.matrix);
    return out;
  }
  Tensor widened(const StoredMatrix& stored, DType dtype) {
    Tensor out = poisoned(dtype, stored.matrix.shape);
    dequantize(ctx, stored.view(), out.view());
    return out;
  }
};

Tensor tokens_below(Dim V) {
  std::vector<std::int32_t> ids;
  for (Dim i = 0; i < kTokens; ++i) ids.push_back(static_cast<std::int32_t>(i * 17 % V));
  return int_tensor({3, 7}, ids);
}

TEST_F(QuantizedEmbedding, IsTheLookupInTheWidenedTable) {
  const Tensor tokens = tokens_below(50);
  for (const GroupedFormat& format : kGroupedFormats) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      SCOPED_TRACE(std::string(name_of(format.format)) + " " + std::string(name_of(dtype)));
      const StoredMatrix table = quantized(format, 50);
      const Tensor wide = widened(table, dtype);
      const Tensor positions = random_tensor(dtype, {12, kWidth}, 2);
      const Tensor keys = first_keys(3, 7, 3);
      for (const bool with_positions : {false, true}) {
        EmbeddingTables tables = {.table = {},
                                  .shard = whole_vocabulary(50),
                                  .positions = with_positions ? positions.view() : CView(),
                                  .first_position = with_positions ? 4 : 0,
                                  .first_keys = keys.view()};
        Tensor found = poisoned(dtype, {3, 7, kWidth});
        Tensor expected = poisoned(dtype, {3, 7, kWidth});

        quantized_embedding_forward(ctx, tokens.view(), table.view(), tables, 1.5F, found.view());

        tables.table = wide.view();
        embedding_forward(ctx, tokens.view(), tables, 1.5F, expected.view());
        EXPECT_TRUE(same_bits(found.view(), expected.view())) << with_positions;
      }
    }
  }
}

TEST_F(QuantizedEmbedding, ResultsInBf16AreRoundedOnce) {
  const Tensor tokens = tokens_below(50);
  const StoredMatrix table = quantized({WeightFormat::int8, 0}, 50);
  const EmbeddingTables tables = {.table = {}, .shard = whole_vocabulary(50)};
  Tensor narrow = poisoned(DType::bf16, {3, 7, kWidth});
  Tensor wide = poisoned(DType::f32, {3, 7, kWidth});

  quantized_embedding_forward(ctx, tokens.view(), table.view(), tables, 1.5F, narrow.view());
  quantized_embedding_forward(ctx, tokens.view(), table.view(), tables, 1.5F, wide.view());

  EXPECT_TRUE(same_bits(narrow.view(), converted(wide.view(), DType::bf16).view()));
}

/// The sum over the ranks of a vocabulary is the whole table's.
TEST_F(QuantizedEmbedding, ARankHasItsOwnRowsAlone) {
  const Tensor tokens = tokens_below(50);
  const StoredMatrix table = quantized({WeightFormat::int4, 64}, 20);
  const EmbeddingTables tables = {.table = {}, .shard = {30, 18, 50}};  // two rows of padding
  const Tensor wide = widened(table, DType::f32);
  Tensor y = poisoned(DType::f32, {3, 7, kWidth});

  quantized_embedding_forward(ctx, tokens.view(), table.view(), tables, 2, y.view());

  for (Dim i = 0; i < kTokens; ++i) {
    const Dim row = tokens.view().data<std::int32_t>()[i] - 30;
    const bool here = row >= 0 && row < 18;
    for (const Dim c : {Dim{0}, kWidth - 1}) {
      const float expected = here ? 2 * wide.view().data<float>()[row * kWidth + c] : 0.0F;
      EXPECT_EQ(y.view().data<float>()[i * kWidth + c], expected) << i;
    }
  }
}

TEST_F(QuantizedEmbedding, WrongOperandsAreNamed) {
  const StoredMatrix table = quantized({WeightFormat::int8, 0}, 50);
  Tensor y = poisoned(DType::f32, {3, 7, kWidth});
  const Tensor beyond = int_tensor({3, 7}, std::vector<std::int32_t>(kTokens, 50));
  const Tensor tokens = tokens_below(50);
  const EmbeddingTables tables = {.table = {}, .shard = whole_vocabulary(50)};
  expect_error_naming("holds token 50", [&] {
    quantized_embedding_forward(ctx, beyond.view(), table.view(), tables, 1, y.view());
  });
  const EmbeddingTables large = {.table = {}, .shard = whole_vocabulary(51)};
  expect_error_naming("quantized_embedding_forward", [&] {
    quantized_embedding_forward(ctx, tokens.view(), table.view(), large, 1, y.view());
  });
}

}  // namespace
}  // namespace hyperslab::ops
