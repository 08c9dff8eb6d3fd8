// SPDX-License-Identifier: Apache-2.0
#include "activation_product.cuh"
#include "cuda/tools/warpgroup.hpp"

namespace hyperslab::ops::cuda {
namespace {

using namespace activation_product;

constexpr const char* kName = "linear_activation_forward";

template <class T>
struct ForwardCall : ProductCall<T> {
  T* pre;
  T* y;
};

template <class Function, bool kHasBias, class T>
class ForwardFinisher {
 public:
  using Call = ForwardCall<T>;
  using Element = T;
  static constexpr Side kSide = Side::by_columns;
  static constexpr bool kBias = kHasBias;

  __device__ ForwardFinisher(const Call& call, const Shared& shared, const TileSchedule& schedule)
      : call_(call), shared_(shared), schedule_(schedule) {}

  __device__ void run() {
    Barriers& barriers = shared_.barriers();
    unsigned parity = 0;
    for (int pair = schedule_.first; pair < call_.pairs; pair += schedule_.stride, parity ^= 1U) {
      const TileOf<T> tile(call_, schedule_, pair);
      tma::wait(&barriers.written[lane_.warp], parity);
      for (int panel = 0; panel < kPanels; ++panel) finish(tile, panel);
      __syncwarp();
      if (threadIdx.x % 32 == 0) tma::arrive(&barriers.read[lane_.warp]);
    }
  }

 private:
  __device__ void finish(const TileOf<T>& tile, int panel) const {
    const FinisherLines lines(call_, tile, lane_, panel);
#pragma unroll
    for (int i = 0; i < FinisherLane::kRows; ++i) {
      const uint4 product = lane_.product(shared_, panel, i);
      const std::uint32_t inputs[4] = {product.x, product.y, product.z, product.w};
      std::uint32_t out[4];
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const float2 input = unpack<T>(inputs[word]);
        out[word] = pack<T>(Function::at(input.x).value, Function::at(input.y).value);
      }
      store_if(lines.has(i), call_.pre + lines.at(i), inputs);
      store_if(lines.has(i), call_.y + lines.at(i), out);
    }
  }

  const Call& call_;
  const Shared& shared_;
  const TileSchedule& schedule_;
  FinisherLane lane_;
};

}  // namespace

void warpgroup_activation_forward(Context& ctx, CView x, CView weight, CView bias,
                                  Activation activation, View pre, View y) {
  with_element(x.dtype(), kName, [&]<class T>(T) {
    if constexpr (sizeof(T) == 2) {
      ForwardCall<T> call = {};
      set_operands<Side::by_columns>(kName, x, weight, call);
      call.bias = optional_data<T>(bias);
      call.pre = pre.data<T>();
      call.y = y.data<T>();
      with_activation<true>(activation, [&]<class Function>(Function) {
        if (bias) {
          launch<ForwardFinisher<Function, true, T>>(ctx, kName, call);
        } else {
          launch<ForwardFinisher<Function, false, T>>(ctx, kName, call);
        }
      });
    } else {
      throw Error(ExitCode::internal,
                  std::string(kName) + ": warpgroups multiply elements of 16 bits");
    }
  });
}

}  // namespace hyperslab::ops::cuda
