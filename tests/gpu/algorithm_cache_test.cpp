// SPDX-License-Identifier: Apache-2.0
// Algorithms of GEMMs that one context chose and another takes over.
#include "hyperslab/ops/algorithm_cache.hpp"

#include <cmath>
#include <utility>
#include <vector>

#include "gpu_test.hpp"
#include "hyperslab/core/graph.hpp"
#include "hyperslab/ops/matmul.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

constexpr Dim kRows = 384;
constexpr Dim kIn = 256;
constexpr Dim kOut = 512;
constexpr std::size_t kWorkspace = std::size_t{16} << 20;

/// The GEMMs of a linear layer and its backward pass, in one context.
class Layer {
 public:
  explicit Layer(bool deterministic = false) : ctx_(Device::cuda, kWorkspace) {
    ctx_.set_deterministic(deterministic);
    upload(random_tensor(DType::bf16, {kRows, kIn}, 1), x_);
    upload(random_tensor(DType::bf16, {kOut, kIn}, 2, 1.0 / std::sqrt(kIn)), weight_);
    upload(random_tensor(DType::bf16, {kOut}, 3), bias_);
    upload(random_tensor(DType::bf16, {kRows, kOut}, 4), dy_);
  }
  [[nodiscard]] Context& ctx() { return ctx_; }
  void enqueue() {
    linear_forward(ctx_, x_.view(), weight_.view(), bias_.view(), y_.view());
    linear_backward_input(ctx_, dy_.view(), weight_.view(), Accumulate::no, dx_.view());
    linear_backward_weight(ctx_, dy_.view(), x_.view(), Accumulate::no, dweight_.view(),
                           dbias_.view());
  }
  /// All results, on the host.
  [[nodiscard]] std::vector<Tensor> results() {
    std::vector<Tensor> all;
    for (const Tensor* result : {&y_, &dx_, &dweight_, &dbias_}) {
      const CView view = result->view();
      all.emplace_back(Device::cpu, view.dtype(), view.shape());
      copy(ctx_, view, all.back().view());
    }
    synchronize(ctx_);
    return all;
  }

 private:
  void upload(const Tensor& from, Tensor& to) {
    copy(ctx_, from.view(), to.view());
    synchronize(ctx_);
  }
  Context ctx_;
  Tensor x_{Device::cuda, DType::bf16, {kRows, kIn}};
  Tensor weight_{Device::cuda, DType::bf16, {kOut, kIn}};
  Tensor bias_{Device::cuda, DType::bf16, {kOut}};
  Tensor dy_{Device::cuda, DType::bf16, {kRows, kOut}};
  Tensor y_{Device::cuda, DType::bf16, {kRows, kOut}};
  Tensor dx_{Device::cuda, DType::bf16, {kRows, kIn}};
  Tensor dweight_{Device::cuda, DType::f32, {kOut, kIn}};
  Tensor dbias_{Device::cuda, DType::f32, {kOut}};
};

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(same_bits(a[i].view(), b[i].view())) << "result " << i;
  }
}

void expect_close(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(relative_difference(a[i].view(), b[i].view()), tolerance(DType::bf16))
        << "result " << i;
  }
}

/// One GEMM of square matrices in a deterministic context.
class Square {
 public:
  Square(DType dtype, Dim n) : ctx_(Device::cuda, kWorkspace), c_(Device::cuda, dtype, {n, n}) {
    ctx_.set_deterministic(true);
    for (Tensor* operand : {&a_, &b_}) {
      const auto seed = static_cast<std::uint64_t>(operand == &a_ ? 1 : 2);
      const Tensor host = random_tensor(dtype, {n, n}, seed, 1.0 / std::sqrt(n));
      *operand = Tensor(Device::cuda, dtype, {n, n});
      copy(ctx_, host.view(), operand->view());
      synchronize(ctx_);
    }
  }
  [[nodiscard]] Context& ctx() { return ctx_; }
  [[nodiscard]] Tensor run() {
    matmul(ctx_, a_.view(), Trans::no, b_.view(), Trans::no, Accumulate::no, c_.view());
    Tensor out(Device::cpu, c_.view().dtype(), c_.view().shape());
    copy(ctx_, c_.view(), out.view());
    synchronize(ctx_);
    return out;
  }
  /// The entry of the GEMM, which has run.
  [[nodiscard]] std::pair<AlgorithmCache::Kind, AlgorithmCache::Algorithm> entry() {
    return *algorithms_of(ctx_).platforms().at(gemm_platform(ctx_)).begin();
  }

 private:
  Context ctx_;
  Tensor a_, b_, c_;
};

class GpuAlgorithmCache : public GpuTest {};

TEST_F(GpuAlgorithmCache, AnotherContextTakesThemAndChoosesNone) {
  for (const bool deterministic : {false, true}) {
    Layer first(deterministic);
    first.enqueue();
    const AlgorithmCache table = algorithms_of(first.ctx());
    const std::int64_t chosen = chosen_algorithms(first.ctx());
    Layer second(deterministic);

    adopt_algorithms(second.ctx(), AlgorithmCache::of_text(table.text(), "table"));
    second.enqueue();

    EXPECT_EQ(table.size_on(gemm_platform(first.ctx())), table.size());
    EXPECT_GE(table.size(), 3U);
    EXPECT_EQ(static_cast<std::size_t>(chosen), table.size());
    EXPECT_EQ(chosen_algorithms(second.ctx()), 0);
    EXPECT_EQ(algorithms_of(second.ctx()), table);
    if (deterministic) expect_same(second.results(), first.results());
    expect_close(second.results(), first.results());
  }
}

TEST_F(GpuAlgorithmCache, WhatWasChosenBeforeIsReplaced) {
  Square large(DType::bf16, 4096);
  Square small(DType::bf16, 64);
  (void)large.run();
  const Tensor before = small.run();
  const auto [kind, chosen] = small.entry();
  const AlgorithmCache::Algorithm other = large.entry().second;
  ASSERT_NE(chosen, other) << "the library takes the same tiles for 64 rows and for 4096";
  AlgorithmCache table;
  table.add(gemm_platform(small.ctx()), kind, other);

  adopt_algorithms(small.ctx(), table);
  const Tensor after = small.run();

  EXPECT_EQ(small.entry().second, other);
  EXPECT_LE(relative_difference(after.view(), before.view()), tolerance(DType::bf16));
}

TEST_F(GpuAlgorithmCache, GraphsCapturedAfterwardsRunTheAdoptedOnes) {
  Layer first(true);
  first.enqueue();
  const std::vector<Tensor> expected = first.results();
  Layer second(true);
  adopt_algorithms(second.ctx(), algorithms_of(first.ctx()));
  GraphSegment segment;

  for (int i = 0; i < 3; ++i) segment.run(second.ctx(), true, [&] { second.enqueue(); });

  EXPECT_EQ(chosen_algorithms(second.ctx()), 0);
  expect_same(second.results(), expected);
}

TEST_F(GpuAlgorithmCache, ThoseOfADeterministicRunAreItsOwn) {
  Layer timed(false);
  timed.enqueue();
  Layer pinned(true);

  adopt_algorithms(pinned.ctx(), algorithms_of(timed.ctx()));
  pinned.enqueue();

  EXPECT_EQ(chosen_algorithms(pinned.ctx()),
            static_cast<std::int64_t>(algorithms_of(pinned.ctx()).size()));
}

TEST_F(GpuAlgorithmCache, ThoseOfAnotherPlatformAreNotUsed) {
  Layer first;
  first.enqueue();
  AlgorithmCache elsewhere;
  for (const auto& [kind, algorithm] :
       algorithms_of(first.ctx()).platforms().at(gemm_platform(first.ctx()))) {
    elsewhere.add("cuBLASLt 1, another GPU", kind, algorithm);
  }
  Layer second;

  adopt_algorithms(second.ctx(), elsewhere);
  second.enqueue();

  EXPECT_EQ(chosen_algorithms(second.ctx()), chosen_algorithms(first.ctx()));
  EXPECT_EQ(algorithms_of(second.ctx()).size_on(gemm_platform(second.ctx())),
            algorithms_of(second.ctx()).size());
}

TEST_F(GpuAlgorithmCache, ThoseThatTheLibraryRefusesAreChosenAgain) {
  Square half(DType::bf16, 256);
  Square single(DType::f32, 256);
  (void)half.run();
  const Tensor expected = single.run();
  const auto [kind, chosen] = single.entry();
  AlgorithmCache table;  // an algorithm of other dtypes
  table.add(gemm_platform(half.ctx()), kind, half.entry().second);
  Square again(DType::f32, 256);

  adopt_algorithms(again.ctx(), table);
  adopt_algorithms(single.ctx(), table);

  EXPECT_TRUE(same_bits(again.run().view(), expected.view()));
  EXPECT_TRUE(same_bits(single.run().view(), expected.view()));
  EXPECT_EQ(chosen_algorithms(again.ctx()), 1);
  EXPECT_EQ(again.entry().second, chosen);
  EXPECT_EQ(single.entry().second, chosen);
}

}  // namespace
}  // namespace hyperslab::ops
