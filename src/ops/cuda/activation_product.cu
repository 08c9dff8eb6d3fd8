// SPDX-License-Identifier: Apache-2.0
// dpre = (dy weight) * act'(pre) with the column sums of dpre, for Hopper. Warpgroups of a block
// have roles: one thread of the last has the copy engine bring tiles of dy and weight, two multiply
// them, and one takes their products, rounded, through the derivative while the two are at the next
// tile. A block stays on its multiprocessor and goes from tile to tile. Two blocks, a cluster, have
// neighboring rows and the same columns: each brings half of the weights, for both.
#include <cooperative_groups.h>

#include "../checks.hpp"
#include "activation_product.hpp"
#include "handles.hpp"
#include "kernels_activation.cuh"
#include "kernels_words.cuh"
#include "library_workspace.hpp"
#include "reduce.hpp"
#include "tensor_map.hpp"
#include "warpgroup.cuh"
#include "warpgroup.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "linear_activation_backward_input";

constexpr int kMultipliers = 2;  // warpgroups that multiply; then comes the one that finishes
constexpr int kThreads = (kMultipliers + 2) * warpgroup::kThreads;
constexpr int kTileRows = kActivationProductRows;
constexpr int kTileColumns = 192;
constexpr Dim kFewestTiles = 64;  // fewer leave multiprocessors idle that smaller tiles use
constexpr int kDepth = warpgroup::kSwizzled;  // of a product: columns of dy
constexpr int kSlots = 4;  // tiles of dy and weight that are there or on their way
constexpr int kPanelBytes = kTileRows * kDepth * 2;  // of products: kDepth columns of a tile
constexpr int kPanels = kTileColumns / kDepth;
constexpr int kFinishers = 4;                          // warps
constexpr int kFinisherRows = kTileRows / kFinishers;  // of a warp
static_assert(kTileRows == kMultipliers * warpgroup::kRows);

using Left = warpgroup::Tile<kDepth>;         // of dy, for one warpgroup
using Right = warpgroup::Tile<kTileColumns>;  // of weight

struct Barriers {
  std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];        ///< of both blocks' multipliers
  std::uint64_t written[kFinishers];  ///< products, by two warps that have a finisher's rows
  std::uint64_t read[kFinishers];     ///< and read by it
};

struct Shared {
  static constexpr int kLeft = kMultipliers * Left::kBytes;
  static constexpr int kSlot = kLeft + Right::kBytes;
  static constexpr int kProductsAt = kSlots * kSlot;
  static constexpr int kSumsAt = kProductsAt + kPanels * kPanelBytes;
  static constexpr int kBarriersAt = kSumsAt + kFinishers * kTileColumns * 4;
  static constexpr int kBytes = kBarriersAt + static_cast<int>(sizeof(Barriers));

  unsigned char* memory;
  [[nodiscard]] __device__ unsigned char* left(int slot) const { return memory + slot * kSlot; }
  [[nodiscard]] __device__ unsigned char* right(int slot) const { return left(slot) + kLeft; }
  [[nodiscard]] __device__ float* sums() const {
    return reinterpret_cast<float*>(memory + kSumsAt);
  }
  [[nodiscard]] __device__ Barriers& barriers() const {
    return *reinterpret_cast<Barriers*>(memory + kBarriersAt);
  }
  /// Eight elements of the products: rows of a panel of 128 bytes, swizzled as warpgroup::Tile.
  [[nodiscard]] __device__ unsigned char* product(int row, int vector) const {
    return memory + kProductsAt + vector / 8 * kPanelBytes + row * kDepth * 2 +
           (vector % 8 ^ row % 8) * 16;
  }
};

template <class T>
struct ProductCall {
  CUtensorMap dy_boxes;      ///< kRows rows of kDepth columns
  CUtensorMap weight_boxes;  ///< kDepth / 2 rows of kDepth columns
  const T* pre;
  T* dpre;
  float* column_sums;  ///< of the rows of a tile, (tiles, columns), or null
  int rows;
  int columns;
  int steps;         ///< products of depth kDepth that a tile adds up
  int column_tiles;  ///< tiles that a row is cut in
  int pairs;         ///< pairs of tiles of a cluster, those of the same rows one after another
};

/// Which tiles a block has.
struct Place {
  unsigned rank;  ///< in its cluster
  int first;      ///< pair of tiles
  int stride;

  __device__ Place()
      : rank(cooperative_groups::this_cluster().block_rank()),
        first(static_cast<int>(blockIdx.x) / 2),
        stride(static_cast<int>(gridDim.x) / 2) {}
};
template <class T>
struct TileOf {
  int row_tile;
  int first_row;
  int first_column;

  __device__ TileOf(const ProductCall<T>& call, const Place& place, int pair)
      : row_tile(2 * (pair / call.column_tiles) + static_cast<int>(place.rank)),
        first_row(row_tile * kTileRows),
        first_column(pair % call.column_tiles * kTileColumns) {}
};

/// One thread.
template <class T>
__device__ void bring_tiles(const ProductCall<T>& call, const Shared& shared, const Place& place) {
  Barriers& barriers = shared.barriers();
  const int half = static_cast<int>(place.rank) * kDepth / 2;  // of the rows of weight
  int step = 0;
  for (int pair = place.first; pair < call.pairs; pair += place.stride) {
    const TileOf<T> tile(call, place, pair);
    for (int i = 0; i < call.steps; ++i, ++step) {
      const int slot = step % kSlots;
      std::uint64_t* const full = &barriers.full[slot];
      tma::wait(&barriers.empty[slot], (step / kSlots + 1) % 2);
      tma::arrive_for(full, Shared::kSlot);
#pragma unroll
      for (int part = 0; part < kMultipliers; ++part) {
        tma::copy(shared.left(slot) + part * Left::kBytes, call.dy_boxes, i * kDepth,
                  tile.first_row + part * warpgroup::kRows, full);
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        tma::copy_to_pair(shared.right(slot) + panel * Right::kPartBytes + half * kDepth * 2,
                          call.weight_boxes, tile.first_column + panel * kDepth, i * kDepth + half,
                          full);
      }
    }
  }
}

/// Rounds a warp's products into shared memory: 16 rows from `row` on.
template <class T>
__device__ void write_products(const Shared& shared, int row, const float (&sums)[24][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Lanes 8 q to 8 q + 7 name the rows of the q-th of four blocks of 8 x 8.
  row += lane % 16;
#pragma unroll
  for (int block = 0; block < kTileColumns / 8; block += 2) {
    const std::uint32_t to = tma::shared_address(shared.product(row, block + lane / 16));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(pack<T>(sums[block][0], sums[block][1])),
                 "r"(pack<T>(sums[block][2], sums[block][3])),
                 "r"(pack<T>(sums[block + 1][0], sums[block + 1][1])),
                 "r"(pack<T>(sums[block + 1][2], sums[block + 1][3]))
                 : "memory");
  }
}

/// Warps of warpgroups 0 and 1: sixteen rows of every tile each.
template <class T>
__device__ void multiply_slots(const ProductCall<T>& call, const Shared& shared,
                               const Place& place) {
  Barriers& barriers = shared.barriers();
  const int warp = warpgroup::uniform(static_cast<int>(threadIdx.x) / 32);
  const int part = warp / 4;
  const bool leads = threadIdx.x % 32 == 0;
  float sums[24][4];
  // Two warps of each warpgroup tell the two blocks, which wait for both warpgroups of both.
  const auto release = [&](int step) {
    if (leads && warp % 4 < 2) tma::arrive_in(&barriers.empty[step % kSlots], warp % 4);
  };
  int step = 0;
  unsigned turn = 1;
  for (int pair = place.first; pair < call.pairs; pair += place.stride, turn ^= 1U) {
    for (int i = 0; i < call.steps; ++i, ++step) {
      const int slot = step % kSlots;
      tma::wait(&barriers.full[slot], step / kSlots % 2);
      warpgroup::fence();
      warpgroup::multiply_tiles<T>(Left(shared.left(slot) + part * Left::kBytes),
                                   Right(shared.right(slot)), i > 0, sums);
      warpgroup::commit();
      if (i == 0) continue;
      warpgroup::wait<1>();
      release(step - 1);
    }
    warpgroup::wait<0>();
    warpgroup::pin(sums);
    release(step - 1);
    tma::wait(&barriers.read[warp / 2], turn);
    write_products<T>(shared, warp * 16, sums);
    __syncwarp();
    if (leads) tma::arrive(&barriers.written[warp / 2]);
  }
}

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
__device__ inline void store_if(bool there, void* to, const std::uint32_t (&words)[4]) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %5, 0;\n"
      "@there st.global.v4.u32 [%4], {%0, %1, %2, %3};\n}" ::"r"(words[0]),
      "r"(words[1]), "r"(words[2]), "r"(words[3]), "l"(to), "r"(static_cast<int>(there)));
}

/// act'(x) for elements of 16 bits.
template <class Function>
struct Slope {
  __device__ static float at(float x) { return Function::at(x).slope; }
};
/// Within 3e-4. With s = (1 + tanh(u)) / 2 it is s + 2 s (1 - s) x u'.
template <>
struct Slope<GeluTanh<true>> {
  __device__ static float at(float x) {
    constexpr float kScale = 0.797884561F;  // sqrt(2 / pi)
    constexpr float kCubic = 0.044715F * kScale;
    const float square = x * x;
    const float s = fmaf(0.5F, hyperbolic_tangent(x * fmaf(kCubic, square, kScale)), 0.5F);
    return fmaf(fmaf(-s, s, s), x * fmaf(6 * kCubic, square, 2 * kScale), s);
  }
};

/// Warpgroup 2. A warp has kFinisherRows rows of every tile, panel by panel; a lane eight columns
/// of every fourth of them. It asks for an element of pre as soon as it is done with the one that
/// lies there in the panel before.
template <class Function, class T>
class Finisher {
 public:
  __device__ Finisher(const ProductCall<T>& call, const Shared& shared, const Place& place)
      : call_(call),
        shared_(shared),
        place_(place),
        warp_(static_cast<int>(threadIdx.x) % warpgroup::kThreads / 32),
        row_(warp_ * kFinisherRows + static_cast<int>(threadIdx.x) % 32 / 8),
        vector_(static_cast<int>(threadIdx.x) % 8) {}

  __device__ void run() {
    if (place_.first >= call_.pairs) return;
    Barriers& barriers = shared_.barriers();
    TileOf<T> tile(call_, place_, place_.first);
    Lines lines(*this, tile, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) pre_[i] = lines.load(i);
    unsigned turn = 0;
    for (int pair = place_.first; pair < call_.pairs; pair += place_.stride, turn ^= 1U) {
      // After the last tile its first panel is read once more.
      const int next_pair = pair + place_.stride < call_.pairs ? pair + place_.stride : pair;
      const TileOf<T> next(call_, place_, next_pair);
      tma::wait(&barriers.written[warp_], turn);
      for (int panel = 0; panel < kPanels; ++panel) {
        const bool last = panel + 1 == kPanels;
        const Lines after(*this, last ? next : tile, last ? 0 : panel + 1);
        finish(panel, lines, after);
        lines = after;
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) tma::arrive(&barriers.read[warp_]);
      if (call_.column_sums != nullptr) store_sums(tile);
      tile = next;
    }
  }

 private:
  static constexpr int kRowsApart = 4;
  static constexpr int kRows = kFinisherRows / kRowsApart;  // of a lane

  /// A lane's elements of a panel.
  struct Lines {
    const T* pre;
    T* dpre;
    Dim stride;
    int there;  ///< rows from the lane's first on; none in columns that dpre lacks

    __device__ Lines(const Finisher& of, const TileOf<T>& tile, int panel)
        : stride(static_cast<Dim>(kRowsApart) * of.call_.columns) {
      const int row = tile.first_row + of.row_;
      const int column = tile.first_column + panel * kDepth + 8 * of.vector_;
      const Dim element = static_cast<Dim>(row) * of.call_.columns + column;
      pre = of.call_.pre + element;
      dpre = of.call_.dpre + element;
      there = column < of.call_.columns ? of.call_.rows - row : 0;
    }
    [[nodiscard]] __device__ uint4 load(int i) const {
      return load_if(kRowsApart * i < there, pre + i * stride);
    }
    __device__ void store(int i, const std::uint32_t (&words)[4]) const {
      store_if(kRowsApart * i < there, dpre + i * stride, words);
    }
  };

  __device__ void finish(int panel, const Lines& lines, const Lines& after) {
    float sums[8] = {};  // rows that are not there add nothing: their products are zero
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const uint4 product = *reinterpret_cast<const uint4*>(
          shared_.product(row_ + kRowsApart * i, 8 * panel + vector_));
      const std::uint32_t products[4] = {product.x, product.y, product.z, product.w};
      const std::uint32_t inputs[4] = {pre_[i].x, pre_[i].y, pre_[i].z, pre_[i].w};
      pre_[i] = after.load(i);
      std::uint32_t out[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float2 gradient = unpack<T>(products[word]);
        const float2 input = unpack<T>(inputs[word]);
        const float low = gradient.x * Slope<Function>::at(input.x);
        const float high = gradient.y * Slope<Function>::at(input.y);
        sums[2 * word] += low;
        sums[2 * word + 1] += high;
        out[word] = pack<T>(low, high);
      }
      lines.store(i, out);
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
    auto* const to = reinterpret_cast<float4*>(shared_.sums() + warp_ * kTileColumns +
                                               panel * kDepth + 8 * vector_);
    to[0] = {sums[0], sums[1], sums[2], sums[3]};
    to[1] = {sums[4], sums[5], sums[6], sums[7]};
  }
  /// Those of the four warps.
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

  const ProductCall<T>& call_;
  const Shared& shared_;
  const Place& place_;
  int warp_;
  int row_;     ///< this lane's first of a tile
  int vector_;  ///< which eight columns of a panel
  uint4 pre_[kRows];
};

template <class Function, class T>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    activation_product_kernel(const __grid_constant__ ProductCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared = {memory};
  const Place place;
  Barriers& barriers = shared.barriers();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kSlots; ++i) {
      tma::init(&barriers.full[i], 1);
      tma::init(&barriers.empty[i], 2 * kMultipliers);
    }
    for (int i = 0; i < kFinishers; ++i) {
      tma::init(&barriers.written[i], 2);
      tma::init(&barriers.read[i], 1);
    }
    tma::publish_init();
  }
  cooperative_groups::this_cluster().sync();
  const int role = warpgroup::uniform(static_cast<int>(threadIdx.x) / warpgroup::kThreads);
  if (role < kMultipliers) {
    warpgroup::take_registers<160>();
    multiply_slots(call, shared, place);
  } else if (role == kMultipliers) {
    warpgroup::take_registers<160>();
    Finisher<Function, T>(call, shared, place).run();
  } else {
    warpgroup::give_registers<32>();
    if (threadIdx.x % warpgroup::kThreads == 0) bring_tiles(call, shared, place);
  }
  __syncwarp();
  cooperative_groups::this_cluster().sync();  // a block's barriers stay until both have ended
}

template <class T>
inline constexpr CUtensorMapDataType kBoxType =
    std::is_same_v<T, bf16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/// A contiguous matrix in boxes of so many rows and kDepth columns.
template <class T>
CUtensorMap boxes_of(CView matrix, int rows) {
  const Dim columns = matrix.shape().back();
  return tensor_map(kName, matrix.raw(),
                    {.type = kBoxType<T>,
                     .sizes = {columns, leading(matrix.shape())},
                     .strides_bytes = {columns * static_cast<Dim>(sizeof(T))},
                     .box = {kDepth, rows},
                     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

template <class Function, class T>
void launch(Context& ctx, const ProductCall<T>& call) {
  constexpr auto kKernel = activation_product_kernel<Function, T>;
  [[maybe_unused]] static const bool asked = [] {
    check_cuda(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::kBytes),
        kName, "cudaFuncSetAttribute");
    return true;
  }();
  const int clusters = std::min(call.pairs, multiprocessors() / 2);
  kKernel<<<static_cast<unsigned>(2 * clusters), kThreads, Shared::kBytes, ctx.stream().cuda()>>>(
      call);
  check_launch(kName);
}

}  // namespace

bool suits_activation_product(CView dy, CView weight, CView pre,
                              const ActivationGradients& gradients) {
  const auto [M, K] = weight.dims<2>(kName);
  const Dim tiles = ceil_divide(leading(dy.shape()), kTileRows) * ceil_divide(K, kTileColumns);
  return size_of(dy.dtype()) == 2 && M % 8 == 0 && K % 8 == 0 && tiles >= kFewestTiles &&
         aligned(dy.raw(), weight.raw(), pre.raw(), gradients.dpre.raw()) && has_warpgroups();
}

void warpgroup_activation_product(Context& ctx, CView dy, CView weight, CView pre,
                                  Activation activation, const ActivationGradients& gradients) {
  const auto& [dpre, dbias, accumulate_bias] = gradients;
  const auto [M, K] = weight.dims<2>(kName);
  const Dim rows = leading(dy.shape());
  const auto row_tiles = static_cast<int>(ceil_divide(rows, kTileRows));
  float* sums = nullptr;
  if (dbias) {
    sums = static_cast<float*>(ctx.workspace(kName, activation_product_workspace(rows, K)));
  }
  with_element(dy.dtype(), kName, [&, dpre = dpre, M = M, K = K]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      ProductCall<T> call = {};
      call.dy_boxes = boxes_of<T>(dy, warpgroup::kRows);
      call.weight_boxes = boxes_of<T>(weight, kDepth / 2);
      call.pre = pre.data<T>();
      call.dpre = dpre.template data<T>();
      call.column_sums = sums;
      call.rows = static_cast<int>(rows);
      call.columns = static_cast<int>(K);
      call.steps = static_cast<int>(ceil_divide(M, kDepth));
      call.column_tiles = static_cast<int>(ceil_divide(K, kTileColumns));
      call.pairs = (row_tiles + 1) / 2 * call.column_tiles;
      with_activation<true>(activation,
                            [&]<class Function>(Function) { launch<Function>(ctx, call); });
    }
  });
  if (!dbias) return;
  sum_partials(ctx, kName,
               {.partial = sums,
                .parts = row_tiles,
                .stride = K,
                .C = K,
                .accumulate = accumulate_bias == Accumulate::yes,
                .out = {dbias.data<float>()}});
}

}  // namespace hyperslab::ops::cuda
