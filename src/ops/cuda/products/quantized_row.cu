// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "checks.hpp"
#include "matrix_vector.hpp"
#include "row_product.cuh"

namespace hyperslab::ops::cuda {
namespace {

template <class T>
struct RowCall {
  RowWeights<T> weights;
  const T* x;
  Dim K;
  RowOutput<T> out;
};

/// A block takes tiles gridDim.x apart.
template <class Format, class T>
__global__ void __launch_bounds__(kRowThreads, 1)
    quantized_row_kernel(const __grid_constant__ RowCall<T> call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Ring = WeightRing<Format::kScaled>;
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ typename Ring::Barriers barriers;
  __shared__ TileSums::Memory sums;
  overlap();
  Ring ring(shared, barriers);
  TileSums tiles(sums);
  if (threadIdx.x == 0) {
    ring.init();
    tiles.init();
  }
  __syncthreads();
  if (is_finisher()) {
    wait_for_earlier();  // which may still read y's memory
    return finish_row(call.weights, tiles, call.out);
  }
  if (threadIdx.x >= kRingReaders) {
    if (threadIdx.x == kRingReaders) ring.fill(call.weights.source);
    return;
  }
  const typename Format::Row row(shared + Ring::kBytes, call.K);
  wait_for_earlier();
  Format::keep(StoredColumns<T>{call.x}, row, call.K);
  sync_readers();
  multiply_row<Format>(ring, call.weights, row, tiles);
#endif
}

constexpr std::size_t kMostStatic = 5 * 1024;  // bytes of shared memory beside

template <class Codes, class T>
void launch(Context& ctx, const RowCall<T>& call) {
  using Format = CodeFormat<Codes, T>;
  constexpr std::size_t kRing = WeightRing<Format::kScaled>::kBytes;
  static_assert(kRing + kMostColumns * 2 + kMostColumns / Codes::kCodes * 8 + kMostStatic <=
                kRingShared);
  launch_ring<kRowThreads>(ctx, "quantized_linear_forward", quantized_row_kernel<Format, T>,
                           kRing + Format::shared_bytes(call.K), call.weights.source.tiles(), call);
}

}  // namespace

int scale_piece(const CQuantizedMatrix& weight) {
  const auto group = static_cast<std::uint64_t>(weight.group);
  if (group < Int4Codes::kCodes || !std::has_single_bit(group)) return 0;
  const Dim bytes = 2 * Dim{kRingPiece} / weight.group * 2;
  const Dim row_bytes = weight.shape[1] / weight.group * 2;
  return bytes % 16 == 0 && row_bytes % 16 == 0 ? static_cast<int>(bytes) : 0;
}

bool suits_row_codes(const CQuantizedMatrix& weight, bool gated) {
  if (weight.format == WeightFormat::nf4) return false;
  const bool is_int8 = weight.format == WeightFormat::int8;
  const Dim K = weight.shape[1];
  if (K > kMostColumns || !suits_ring(weight.shape[0], is_int8 ? K : K / 2, gated)) return false;
  return aligned(weight.codes.raw(), weight.scales.raw()) &&
         (is_int8 || (K % Int4Codes::kCodes == 0 && scale_piece(weight) > 0));
}

bool suits_quantized_row(CView x, const CQuantizedMatrix& weight, bool gated) {
  const bool is_16_bit = x.dtype() == DType::bf16 || x.dtype() == DType::f16;
  return is_16_bit && leading(x.shape()) == 1 && aligned(x.raw()) && suits_row_codes(weight, gated);
}

void quantized_row(Context& ctx, CView x, const CQuantizedMatrix& weight, CView bias,
                   const RowsOutput& out) {
  constexpr const char* kName = "quantized_linear_forward";
  with_element(x.dtype(), kName, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      const RowCall<T> call = {row_codes<T>(kName, weight, bias, out.gated),
                               x.data<T>(),
                               weight.shape[1],
                               {out.y.data<T>(), out.activation, false}};
      if (weight.format == WeightFormat::int8) return launch<Int8Codes>(ctx, call);
      launch<Int4Codes>(ctx, call);
    }
  });
}

}  // namespace hyperslab::ops::cuda
