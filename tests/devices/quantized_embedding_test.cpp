// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/embedding.hpp"
#include "ops/quantized_case.hpp"
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

/// All rows, and those of a rank.
TEST_F(QuantizedEmbedding, Forward) {
  for (const DType dtype : compute_types()) {
    for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4, WeightFormat::nf4}) {
      for (const Dim C : {64, 192}) {
        const GroupedFormat of = {format, format == WeightFormat::int8 ? 0 : 64};
        const StoredMatrix table = stored_matrix(of, kVocabulary, C);
        Context cpu(Device::cpu);
        quantize(cpu, random_tensor(DType::f32, {kVocabulary, C}, 5).view(), table.matrix);
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
                CQuantizedMatrix matrix = {format, table.matrix.group, table.matrix.shape, v[1],
                                           v[2]};
                if (format == WeightFormat::nf4) matrix.block_scales = v[3];
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
