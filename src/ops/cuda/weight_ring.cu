// SPDX-License-Identifier: Apache-2.0
#include "handles.hpp"
#include "weight_ring.cuh"

namespace hyperslab::ops::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, without linking to the driver.
Encode encoder(const char* op) {
  static const Encode encode = [op] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                cudaEnableDefault, &found),
               op, "cudaGetDriverEntryPointByVersion");
    if (found != cudaDriverEntryPointSuccess) {
      throw Error(ExitCode::device, std::string(op) + ": the driver lacks cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<Encode>(function);
  }();
  return encode;
}

/// A matrix in boxes of kRingBox rows of `box_bytes` bytes.
CUtensorMap map_of(const char* op, const void* from, CUtensorMapDataType type, Dim M, Dim row_bytes,
                   int box_bytes) {
  const Dim size = type == CU_TENSOR_MAP_DATA_TYPE_INT64 ? 8 : 2;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_bytes / size),
                               static_cast<cuuint64_t>(M)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_bytes / size), kRingBox};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder(op)(&map, type, 2, const_cast<void*>(from), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ExitCode::device, std::string(op) +
                                      ": cuTensorMapEncodeTiled refused a matrix of " +
                                      std::to_string(M) + " rows of " + std::to_string(row_bytes) +
                                      " bytes (" + std::to_string(static_cast<int>(result)) + ")");
  }
  return map;
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

int multiprocessors(const char* op) {
  static const int count = [op] {
    int device = 0;
    int processors = 0;
    check_cuda(cudaGetDevice(&device), op, "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), op,
               "cudaDeviceGetAttribute");
    return processors;
  }();
  return count;
}

}  // namespace hyperslab::ops::cuda
