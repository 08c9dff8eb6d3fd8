// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/handles.hpp"
#include "cuda/tools/tensor_map.hpp"
#include "weight_ring.cuh"

namespace hyperslab::ops::cuda {
namespace {

/// A matrix in boxes of kRingBox rows of `box_bytes` bytes.
CUtensorMap map_of(const char* op, const void* from, CUtensorMapDataType type, Dim M, Dim row_bytes,
                   int box_bytes) {
  const Dim size = type == CU_TENSOR_MAP_DATA_TYPE_INT64 ? 8 : 2;
  return tensor_map(op, from,
                    {type, {row_bytes / size, M}, {row_bytes}, {box_bytes / size, kRingBox}});
}

}  // namespace

bool suits_ring(Dim M, Dim row_bytes, bool gated) {
  constexpr Dim kMost = Dim{1} << 30;
  if (!kOverlaps || most_shared_bytes() < kRingShared || M <= 0 || row_bytes <= 0 || M > kMost ||
      row_bytes > kMost)
    return false;
  return row_bytes % 16 == 0 && (!gated || M % (2 * kRingBox) == 0);
}

RingSource ring_source(const char* op, const void* codes, Dim M, Dim row_bytes, bool gated) {
  RingSource source{};
  source.codes = map_of(op, codes, CU_TENSOR_MAP_DATA_TYPE_INT64, M, row_bytes, kRingPiece);
  source.row_bytes = static_cast<int>(row_bytes);
  source.M = static_cast<int>(M);
  source.gated = gated;
  return source;
}

void add_ring_scales(const char* op, const void* scales, Dim scale_row_bytes, int piece,
                     RingSource& source) {
  source.scales =
      map_of(op, scales, CU_TENSOR_MAP_DATA_TYPE_UINT16, source.M, scale_row_bytes, piece);
  source.scale_piece = piece;
}

}  // namespace hyperslab::ops::cuda
