// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"
#include "ops/shards.hpp"
#include "problem.hpp"
#include "support/first_keys.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

constexpr Dim kVocabulary = 50;

class QuantizedEmbedding : public DevicesTest {};

Tensor tokens() {
  std::vector<std::int32_t> ids;
  for (Dim i = 0; i < 21; ++i) ids.push_back(static_cast<std::int32_t>(i * 17 % kVocabulary));
  return int_tensor({3, 7}, ids);
}

/// A quantized table that the CPU made.
struct Table {
  Table(WeightFormat format, Dim columns_of_a_scale, Dim C)
      : is_int8(format == WeightFormat::int8),
        is_nf4(format == WeightFormat::nf4),
        group(is_int8 ? C : columns_of_a_scale),
        shape{kVocabulary, C},
        codes(filled_tensor(DType::u8, {kVocabulary, is_int8 ? C : C / 2}, 3)),
        scales(filled_tensor(is_int8  ? DType::f32
                             : is_nf4 ? DType::u8
                                      : DType::f16,
                             {kVocabulary * C / group}, 3)),
        block_scales(filled_tensor(
            DType::f32, {(kVocabulary * C / group + kScaleBlock - 1) / kScaleBlock}, 3)) {
    Context cpu(Device::cpu);
    quantize(
        cpu, random_tensor(DType::f32, shape, 5).view(),
        {format, group, shape, codes.view(), scales.view(), is_nf4 ? block_scales.view() : View()});
  }
  bool is_int8;
  bool is_nf4;
  Dim group;
  Shape shape;
  Tensor codes;
  Tensor scales;
  Tensor block_scales;
};

/// All rows, and those of a rank.
TEST_F(QuantizedEmbedding, Forward) {
  for (const DType dtype : compute_types()) {
    for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4, WeightFormat::nf4}) {
      for (const Dim C : {64, 192}) {
        const Table table(format, 64, C);
        for (const VocabularyShard& shard :
             {whole_vocabulary(kVocabulary), VocabularyShard{13, 37, kVocabulary}}) {
          Problem problem(dtype);
          problem.fixed(tokens())
              .fixed(table.codes.clone())
              .fixed(table.scales.clone())
              .fixed(table.block_scales.clone())
              .input(random_tensor(dtype, {12, C}, 2))
              .fixed(first_keys(3, 7, 3))
              .output(dtype, {3, 7, C})
              .output(dtype, {3, 7, C})
              .output(dtype, {3, 7, C});
          problem.expect_match(
              [&](Context& ctx, const Views& v) {
                const CQuantizedMatrix matrix = {format, table.group, table.shape,
                                                 v[1],   v[2],        table.is_nf4 ? v[3] : View()};
                quantized_embedding_forward(ctx, v[0], matrix, {.table = {}, .shard = shard}, 1.5F,
                                            v[6]);
                quantized_embedding_forward(
                    ctx, v[0], matrix,
                    {.table = {}, .shard = shard, .positions = v[4], .first_position = 4}, 1.5F,
                    v[7]);
                quantized_embedding_forward(
                    ctx, v[0], matrix,
                    {.table = {}, .shard = shard, .positions = v[4], .first_keys = v[5]}, 1.5F,
                    v[8]);
              },
              "quantized_embedding_forward of " + std::string(name_of(format)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops
