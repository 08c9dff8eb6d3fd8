// SPDX-License-Identifier: Apache-2.0
// Products of few rows, as in generation: what kernels of our own compute instead of cuBLASLt.
#include <cuda_runtime_api.h>

#include <cmath>

#include "gpu_test.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/ops/quantized.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

class GpuMatrixVector : public GpuTest {};

struct Size {
  Dim M, K;
};
/// One tile and less, tails of tiles and of steps, several steps of every warp.
const std::vector<Size> kSizes = {{1, 8},      {16, 32},    {17, 40},    {3, 1000},
                                  {129, 4096}, {40, 14336}, {1003, 2056}};

Problem few_rows(DType dtype, const Size& size, Dim rows, bool bias) {
  Problem problem(dtype);
  problem.input(random_tensor(dtype, {rows, size.K}, 1, 1 / std::sqrt(double(size.K))))
      .input(random_tensor(dtype, {size.M, size.K}, 2));
  if (bias) {
    problem.input(random_tensor(dtype, {size.M}, 3));
  } else {
    problem.absent();
  }
  problem.output(dtype, {rows, size.M});
  return problem;
}

TEST_F(GpuMatrixVector, MatchesTheOracleForAllFewRows) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Size& size : kSizes) {
      for (Dim rows = 1; rows <= 9; ++rows) {
        for (const bool bias : {false, true}) {
          few_rows(dtype, size, rows, bias)
              .expect_match(
                  [](Context& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], v[2], v[3]); },
                  "linear_forward of " + std::to_string(rows) + " rows, " +
                      Shape{size.M, size.K}.str());
        }
      }
    }
  }
}

TEST_F(GpuMatrixVector, ARowHasTheBitsThatItHasAlone) {
  const Dim K = 2048;
  const Dim M = 200;
  const auto product = [&](Dim rows) {
    Problem problem(DType::bf16);
    problem.input(random_tensor(DType::bf16, {rows, K}, 1))
        .input(random_tensor(DType::bf16, {M, K}, 2))
        .output(DType::bf16, {rows, M});
    auto operands = problem.on_gpu(
        [](Context& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], {}, v[2]); });
    return std::move(operands[2]);
  };
  const Tensor all = product(8);
  for (Dim rows = 1; rows < 8; ++rows) {
    EXPECT_TRUE(same_bits(product(rows).view(), all.view().slice(0, rows))) << rows;
  }
}

/// Seconds of one call, of many in a row.
template <class Call>
double seconds_of(Context& ctx, const Call& call) {
  constexpr int kCalls = 50;
  for (int i = 0; i < 5; ++i) call();
  synchronize(ctx);
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  EXPECT_EQ(cudaEventCreate(&start), cudaSuccess);
  EXPECT_EQ(cudaEventCreate(&stop), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(start, ctx.stream().cuda()), cudaSuccess);
  for (int i = 0; i < kCalls; ++i) call();
  EXPECT_EQ(cudaEventRecord(stop, ctx.stream().cuda()), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(stop), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, stop), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(stop), cudaSuccess);
  return milliseconds * 1e-3 / kCalls;
}

/// How the weights of a product are kept, and what is multiplied by them.
struct Kind {
  const char* name;
  Dim bits;
  ActivationFormat activations = ActivationFormat::none;
};
const std::vector<Kind> kKinds = {{"bf16", 16},
                                  {"int8", 8},
                                  {"int4 in groups of 64", 4},
                                  {"int8 by int8", 8, ActivationFormat::dynamic_int8}};

/// Several matrices of one size, which take turns, so that no weight is found in the cache.
class Matrices {
 public:
  Matrices(Context& ctx, const Kind& kind, const Size& size, Dim count)
      : kind_(kind),
        size_(size),
        codes_(Device::cuda, DType::u8, {count, size.M * size.K * kind.bits / 8}) {
    std::vector<std::uint16_t> words(static_cast<std::size_t>(bytes() / 2));
    std::uint32_t state = 1;
    for (auto& word : words) {
      state = state * 1664525U + 1013904223U;
      word = static_cast<std::uint16_t>(state >> 16);
      if (kind.bits == 16) word = static_cast<std::uint16_t>((word & 0x80FFU) | 0x3C00U);
    }
    const CView host(words.data(), DType::u8, Device::cpu, {1, bytes()});
    for (Dim i = 0; i < count; ++i) copy(ctx, host, codes_.view().slice(i, 1));
    synchronize(ctx);
    if (kind.bits == 16) return;
    const DType dtype = kind.bits == 8 ? DType::f32 : DType::f16;
    const Tensor scales =
        filled_tensor(dtype, {count, size.M * size.K / group()}, kind.bits == 8 ? 2e-4 : 4e-3);
    scales_ = Tensor(Device::cuda, dtype, scales.view().shape());
    copy(ctx, scales.view(), scales_.view());
    synchronize(ctx);
  }
  /// Of one matrix.
  [[nodiscard]] Dim bytes() const { return size_.M * size_.K * kind_.bits / 8; }
  void multiply(Context& ctx, CView x, Dim turn, View y) {
    const Dim i = turn % codes_.view().shape()[0];
    const View codes = codes_.view().slice(i, 1);
    const auto& [M, K] = size_;
    if (kind_.bits == 16) {
      const CView weight(codes.raw(), DType::bf16, Device::cuda, {M, K});
      return linear_forward(ctx, x, weight, {}, y);
    }
    const WeightFormat format = kind_.bits == 8 ? WeightFormat::int8 : WeightFormat::int4;
    const View scales = scales_.view().slice(i, 1).reshaped({M * K / group()});
    quantized_linear_forward(
        ctx, x, {format, group(), {M, K}, codes.reshaped({M, K * kind_.bits / 8}), scales, {}}, {},
        kind_.activations, y);
  }

 private:
  [[nodiscard]] Dim group() const { return kind_.bits == 8 ? size_.K : 64; }
  Kind kind_;
  Size size_;
  Tensor codes_, scales_;
};

constexpr std::size_t kWorkspace = std::size_t{64} << 20;
constexpr Dim kCopied = Dim{256} << 20;

/// Bytes per second that a copy reads and writes.
double bandwidth_of_copy(Context& ctx) {
  Tensor from(Device::cuda, DType::u8, {kCopied});
  Tensor to(Device::cuda, DType::u8, {kCopied});
  return 2.0 * double(kCopied) / seconds_of(ctx, [&] { copy(ctx, from.view(), to.view()); });
}

Tensor row_on_gpu(Context& ctx, Dim rows, Dim K) {
  const Tensor host = random_tensor(DType::bf16, {rows, K}, 1);
  Tensor out(Device::cuda, DType::bf16, {rows, K});
  copy(ctx, host.view(), out.view());
  synchronize(ctx);
  return out;
}

/// Against a copy of as many bytes in the same run.
TEST_F(GpuMatrixVector, IsBoundByMemory) {
  Context ctx(Device::cuda, kWorkspace);
  ctx.set_fixed_parameters(true);
  const double bandwidth = bandwidth_of_copy(ctx);
  std::printf("a copy: %.0f GB/s\n", bandwidth / 1e9);
  RecordProperty("copy_gb_per_second", int(bandwidth / 1e9));
  for (const Kind& kind : kKinds) {
    for (const Size& size : std::vector<Size>{
             {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}}) {
      const auto& [M, K] = size;
      Matrices weights(ctx, kind, size, std::max<Dim>(1, kCopied / (M * K * kind.bits / 8)));
      for (const Dim rows : {1, 8}) {
        const Tensor x = row_on_gpu(ctx, rows, K);
        Tensor y(Device::cuda, DType::bf16, {rows, M});
        Dim turn = 0;
        const double seconds =
            seconds_of(ctx, [&] { weights.multiply(ctx, x.view(), turn++, y.view()); });
        const double share = double(weights.bytes()) / seconds / bandwidth;
        std::printf("%s, %d rows, (%d, %d): %.1f us, %.0f %% of a copy\n", kind.name, int(rows),
                    int(M), int(K), seconds * 1e6, 100 * share);
        if (kind.bits == 16) {
          EXPECT_GT(share, 0.5) << rows << " rows, " << Shape{M, K}.str();
        }
      }
    }
  }
}

/// The products of layers, one after the other: each reads what the one before wrote.
class Layers {
 public:
  Layers(const Kind& kind, Dim width, Dim ffn, Dim copies, bool fixed)
      : ctx_(Device::cuda, kWorkspace), width_(width), ffn_(ffn) {
    ctx_.set_fixed_parameters(fixed);
    for (const Size& size : std::vector<Size>{
             {width * 3 / 2, width}, {width, width}, {2 * ffn, width}, {width, ffn}}) {
      weights_.emplace_back(ctx_, kind, size, copies);
      results_.emplace_back(Device::cuda, DType::bf16, Shape{1, size.M});
    }
    input_ = row_on_gpu(ctx_, 1, width);
  }
  void run(Dim layers) {
    segment_.run(ctx_, true, [&] {
      copy(ctx_, input_.view(), results_[3].view());
      for (Dim layer = 0; layer < layers; ++layer) {
        multiply(0, 3, width_, layer);
        multiply(1, 0, width_, layer);
        multiply(2, 1, width_, layer);
        multiply(3, 2, ffn_, layer);
      }
    });
  }
  [[nodiscard]] Context& ctx() { return ctx_; }
  [[nodiscard]] Tensor output() {
    Tensor host(Device::cpu, DType::bf16, {1, width_});
    copy(ctx_, results_[3].view(), host.view());
    synchronize(ctx_);
    return host;
  }

 private:
  void multiply(std::size_t index, std::size_t from, Dim K, Dim layer) {
    const View x = results_[from].view();
    weights_[index].multiply(ctx_, x.reshaped({x.numel()}).slice(0, K).reshaped({1, K}), layer,
                             results_[index].view());
  }
  Context ctx_;
  Dim width_, ffn_;
  std::vector<Matrices> weights_;
  std::vector<Tensor> results_;
  Tensor input_;
  GraphSegment segment_;
};

TEST_F(GpuMatrixVector, OverlappingKernelsGiveTheBitsOfOthers) {
  for (const Kind& kind : kKinds) {
    Layers apart(kind, 1024, 2048, 3, false);
    Layers overlapping(kind, 1024, 2048, 3, true);
    apart.run(6);
    const Tensor expected = apart.output();
    for (int run = 0; run < 20; ++run) {  // eagerly, captured, replayed
      overlapping.run(6);
      ASSERT_TRUE(same_bits(overlapping.output().view(), expected.view()))
          << kind.name << ", run " << run;
    }
  }
}

/// What a layer of 4096 columns takes in a graph of 32, with kernels apart and overlapping.
TEST_F(GpuMatrixVector, OverlappingKernelsHideTheirStarts) {
  constexpr Dim kLayers = 32;
  for (const Kind& kind : kKinds) {
    double seconds[2] = {};
    for (const bool fixed : {false, true}) {
      Layers layers(kind, 4096, 14336, 4, fixed);
      seconds[fixed] = seconds_of(layers.ctx(), [&] { layers.run(kLayers); }) / kLayers;
    }
    std::printf("%s, a layer's products: %.1f us apart, %.1f us overlapping\n", kind.name,
                seconds[0] * 1e6, seconds[1] * 1e6);
    EXPECT_LT(seconds[1], 1.1 * seconds[0]) << kind.name;
  }
}

}  // namespace
}  // namespace hyperslab::ops
