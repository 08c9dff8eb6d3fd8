// SPDX-License-Identifier: Apache-2.0
#include "activation_product.cuh"
#include "cuda/tools/reduce.hpp"

namespace hyperslab::ops::cuda {
namespace {

using namespace activation_product;

constexpr const char* kName = "linear_activation_backward_input";

template <class T>
struct BackwardCall : ProductCall<T> {
  const T* pre;
  T* dpre;
  float* column_sums;  ///< (row tiles, columns) sums of dpre over a tile's rows, or null
};

/// 16 bytes, or zeros. They are read once.
__device__ inline uint4 load_if(bool there, const void* from) {
  uint4 out;
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@there ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(out.x), "=&r"(out.y), "=&r"(out.z), "=&r"(out.w)
      : "l"(from), "r"(static_cast<int>(there)));
  return out;
}
/// Asks for an element of pre as soon as it is done with the one that lies there in the panel
/// before.
template <class Function, class T>
class BackwardFinisher {
 public:
  using Call = BackwardCall<T>;
  using Element = T;
  static constexpr Side kSide = Side::by_rows;
  static constexpr bool kBias = false;

  __device__ BackwardFinisher(const Call& call, const Shared& shared, const TileSchedule& schedule)
      : call_(call), shared_(shared), schedule_(schedule) {}

  __device__ void run() {
    Barriers& barriers = shared_.barriers();
    TileOf<T> tile(call_, schedule_, schedule_.first);
    FinisherLines lines(call_, tile, lane_, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) pre_[i] = load_pre(lines, i);
    unsigned parity = 0;
    for (int pair = schedule_.first; pair < call_.pairs; pair += schedule_.stride, parity ^= 1U) {
      // After its last tile a block loads the first panel of that again, which nothing uses.
      const int next_pair = pair + schedule_.stride < call_.pairs ? pair + schedule_.stride : pair;
      const TileOf<T> next(call_, schedule_, next_pair);
      tma::wait(&barriers.written[lane_.warp], parity);
      for (int panel = 0; panel < kPanels; ++panel) {
        const bool last = panel + 1 == kPanels;
        const FinisherLines after(call_, last ? next : tile, lane_, last ? 0 : panel + 1);
        finish(panel, lines, after);
        lines = after;
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) tma::arrive(&barriers.read[lane_.warp]);
      if (call_.column_sums != nullptr) store_sums(tile);
      tile = next;
    }
  }

 private:
  static constexpr int kRows = FinisherLane::kRows;

  [[nodiscard]] __device__ uint4 load_pre(const FinisherLines& lines, int i) const {
    return load_if(lines.has(i), call_.pre + lines.at(i));
  }

  __device__ void finish(int panel, const FinisherLines& lines, const FinisherLines& after) {
    float sums[8] = {};  // rows that are not there add nothing: their products are zero
    T* const dpre = call_.dpre + lines.first;
    const T* const pre = call_.pre + after.first;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint4 product = lane_.product(shared_, panel, i);
      const std::uint32_t products[4] = {product.x, product.y, product.z, product.w};
      const std::uint32_t inputs[4] = {pre_[i].x, pre_[i].y, pre_[i].z, pre_[i].w};
      pre_[i] = load_if(after.has(i), pre + i * after.stride);
      std::uint32_t out[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float2 gradient = unpack<T>(products[word]);
        const float2 input = unpack<T>(inputs[word]);
        const float low = gradient.x * Function::at(input.x).slope;
        const float high = gradient.y * Function::at(input.y).slope;
        sums[2 * word] += low;
        sums[2 * word + 1] += high;
        out[word] = pack<T>(low, high);
      }
      store_if(lines.has(i), dpre + i * lines.stride, out);
    }
    if (call_.column_sums != nullptr) add_lanes(panel, sums);
  }

  /// Sums over the warp's rows, for store_sums.
  __device__ void add_lanes(int panel, float (&sums)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[i] += __shfl_xor_sync(0xFFFFFFFFU, sums[i], 8);
      sums[i] += __shfl_xor_sync(0xFFFFFFFFU, sums[i], 16);
    }
    if (threadIdx.x % 32 >= 8) return;
    auto* const to = reinterpret_cast<float4*>(shared_.sums() + lane_.warp * kTileColumns +
                                               panel * kDepth + 8 * lane_.vector);
    to[0] = {sums[0], sums[1], sums[2], sums[3]};
    to[1] = {sums[4], sums[5], sums[6], sums[7]};
  }
  /// Adds the column sums of the four warps and stores them.
  __device__ void store_sums(const TileOf<T>& tile) const {
    sync();
    const float* const sums = shared_.sums();
    for (int i = static_cast<int>(threadIdx.x) % warpgroup::kThreads; i < kTileColumns;
         i += warpgroup::kThreads) {
      float sum = sums[i];
#pragma unroll
      for (int warp = 1; warp < kFinishers; ++warp) sum += sums[warp * kTileColumns + i];
      const int column = tile.first_column + i;
      if (tile.first_row < call_.rows && column < call_.columns) {
        call_.column_sums[static_cast<Dim>(tile.row_tile) * call_.columns + column] = sum;
      }
    }
    sync();
  }
  __device__ static void sync() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

  const Call& call_;
  const Shared& shared_;
  const TileSchedule& schedule_;
  FinisherLane lane_;
  uint4 pre_[kRows];
};

}  // namespace

void warpgroup_activation_backward(Context& ctx, CView dy, CView weight, CView pre,
                                   Activation activation, const ActivationGradients& gradients) {
  const auto& [dpre, dbias, accumulate_bias] = gradients;
  const Dim rows = leading(dy.shape());
  const Dim columns = weight.shape()[1];
  float* sums = nullptr;
  if (dbias) {
    sums = static_cast<float*>(ctx.partials(kName, activation_product_partials(rows, columns)));
  }
  with_element(dy.dtype(), kName, [&, dpre = dpre]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      BackwardCall<T> call = {};
      set_operands<Side::by_rows>(kName, dy, weight, call);
      call.pre = pre.data<T>();
      call.dpre = dpre.template data<T>();
      call.column_sums = sums;
      with_activation<true>(activation, [&]<class Function>(Function) {
        launch<BackwardFinisher<Function, T>>(ctx, kName, call);
      });
    } else {
      throw Error(ExitCode::internal,
                  std::string(kName) + ": warpgroups multiply elements of 16 bits");
    }
  });
  if (!dbias) return;
  sum_partials(ctx, kName,
               {.rows = rows,
                .partial = sums,
                .parts = static_cast<int>(ceil_divide(rows, kTileRows)),
                .stride = columns,
                .C = columns,
                .accumulate = accumulate_bias == Accumulate::yes,
                .out = {dbias}});
}

}  // namespace hyperslab::ops::cuda
