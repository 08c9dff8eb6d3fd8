// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/warpgroup.hpp"
#include "warpgroup_rows.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr const char* kName = "attention_forward";

/// The queries of a block of a sample's forward pass, by grid (tiles, heads, samples).
template <class T>
struct ForwardRows : QueryRows<T> {
  const WarpgroupCall<T>& boxes;

  __device__ ForwardRows(const WarpgroupCall<T>& of, const Lane& at)
      : QueryRows<T>(of, at), boxes(of) {}
  template <class Ring>
  __device__ void load_queries(const Ring& ring) const {
    ring.load(0, boxes.qkv_boxes, this->query_column, this->first_query, this->sample);
  }
  template <class Ring>
  __device__ void load_keys(const Ring& ring, int i) const {
    ring.load(i, boxes.qkv_boxes, this->key_column, this->key_of(i), this->sample);
  }
  template <class Ring>
  __device__ void load_values(const Ring& ring, int i) const {
    ring.load(i, boxes.qkv_boxes, this->value_column, this->key_of(i), this->sample);
  }
  /// The copy engine gives zeros beyond a sample.
  template <class Ring>
  __device__ void mend_last(const Ring& /*ring*/) const {}
};

/// Block (tile of queries, head, sample).
template <int kWidth, bool kCapped, class T>
__global__ void __launch_bounds__(kTileThreads, SharedLayout<kWidth>::kBlocks)
    attend_warpgroup_kernel(const __grid_constant__ WarpgroupCall<T> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  overlap();
  wait_for_earlier();
  const Lane at;
  const ForwardRows<T> rows(call, at);
  RowSums sums;
  float out[kWidth / 8][4] = {};
  attend_rows<T, kWidth>(memory, at, rows, ScoreRule<kCapped>(call), sums, out);
  store_out<kWidth>(call, rows.sample, rows.head, rows.first_query, at, sums.off, sums.sum, out);
}

}  // namespace

void warpgroup_attention_forward(Context& ctx, const HeadLayout& layout,
                                 const AttentionScores& scores, CView qkv, View out,
                                 View log_sum_exp) {
  with_warpgroups(
      qkv.dtype(), layout, scores.softcap, kName,
      [&]<int kWidth, bool kCapped, class T>(Width<kWidth>, std::bool_constant<kCapped>, T) {
        WarpgroupCall<T> call = {tiled_call<T>(layout, scores, qkv), {}, {}};
        call.qkv_boxes = boxes_of<T>(kName, qkv, kWidth);
        call.out = out.data<T>();
        call.log_sum_exp = log_sum_exp.data<float>();
        launch_waiting_tiles<SharedLayout<kWidth>::kBytes,
                             attend_warpgroup_kernel<kWidth, kCapped, T>>(
            ctx, kName, leading(qkv.shape()), tile_grid(call, call.heads, qkv.shape()[0]), call);
      });
}

}  // namespace hyperslab::ops::cuda
