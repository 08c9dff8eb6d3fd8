// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/attention.hpp"

#include <gmock/gmock.h>

#include "cuda/attention/table.hpp"
#include "cuda/tools/warpgroup.hpp"
#include "gpu_test.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/step_state.hpp"
#include "support/first_keys.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using Views = Problem::Views;

struct Size {
  Dim B, T;
  HeadLayout layout;
  AttentionMask mask{};
  Dim document = 0;
  double softcap = 0;
  double scale = 0;
  /// `documents`: what first_keys() gives.
  [[nodiscard]] AttentionScores scores(CView documents) const {
    AttentionScores scores(mask);
    scores.scale = scale;
    scores.softcap = softcap;
    if (document > 0) scores.first_keys = documents;
    return scores;
  }
  [[nodiscard]] Shape packed() const { return {B, T, layout.packed_width()}; }
  [[nodiscard]] Shape out() const { return {B, T, layout.heads * layout.head_width}; }
  [[nodiscard]] Shape statistics() const { return {B, layout.heads, T}; }
  [[nodiscard]] Shape square() const { return {B, layout.heads, T, T}; }
  [[nodiscard]] std::string str() const {
    return "B " + std::to_string(B) + " T " + std::to_string(T) + " heads " +
           std::to_string(layout.heads) + "/" + std::to_string(layout.kv_heads) + " x " +
           std::to_string(layout.head_width) + " mask " + std::string(name_of(mask.kind)) +
           " window " + std::to_string(mask.window) + " document " + std::to_string(document) +
           " softcap " + std::to_string(softcap);
  }
};

void expect_oracle(const Tensor& found, const Tensor& oracle, double within,
                   const std::string& what) {
  EXPECT_LE(relative_difference(found.view(), oracle.view()), within) << what;
}

constexpr AttentionMask kNoMask = {AttentionMask::Kind::none};

class GpuFusedAttention : public GpuTest, public testing::WithParamInterface<Size> {};

/// qkv, dout, out, log_sum_exp, dqkv, first keys, the gradient of the bias of qkv.
Problem fused_problem(const Size& size, DType dtype) {
  Problem problem(dtype);
  problem.input(random_tensor(dtype, size.packed(), 1))
      .input(random_tensor(dtype, size.out(), 2))
      .output(dtype, size.out())
      .output(DType::f32, size.statistics())
      .output(dtype, size.packed())
      .fixed(first_keys(size.B, size.T, size.document))
      .in_out(random_tensor(DType::f32, {size.layout.packed_width()}, 3));
  return problem;
}

Problem::Call fused_call(const Size& size, bool deterministic) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_deterministic(deterministic);
    const AttentionScores scores = size.scores(v[5]);
    attention_forward(ctx, size.layout, scores, v[0], v[2], v[3]);
    attention_backward(ctx, size.layout, scores, v[1], {v[0], v[2], v[3]},
                       {v[4], v[6], Accumulate::yes});
  };
}

TEST_P(GpuFusedAttention, MatchesTheOracle) {
  const Size size = GetParam();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Problem problem = fused_problem(size, dtype);
    const auto oracle = problem.on_oracle(fused_call(size, false));

    const auto found = problem.on_gpu(fused_call(size, false));

    const std::string what = size.str() + " in " + std::string(name_of(dtype));
    expect_oracle(found[2], oracle[2], tolerance(dtype), what + ", out");
    expect_oracle(found[3], oracle[3], 1e-3, what + ", log_sum_exp");
    expect_oracle(found[4], oracle[4], 2 * tolerance(dtype), what + ", dqkv");
    expect_oracle(found[6], oracle[6], tolerance(dtype), what + ", dbias");
  }
}

/// Both passes by one row of the tables; on `meta` the ops themselves, which plan for every row.
Problem::Call row_call(const Size& size, std::size_t row) {
  return [=](Context& ctx, const Views& v) {
    if (ctx.device() == Device::meta) return fused_call(size, false)(ctx, v);
    ctx.set_deterministic(false);
    const AttentionScores scores = size.scores(v[5]);
    cuda::kAttentionForward.at(row).launch(ctx, size.layout, scores, v[0], v[2], v[3]);
    cuda::kAttentionBackward.at(row).launch(ctx, size.layout, scores, v[1], {v[0], v[2], v[3]},
                                            {v[4], v[6], Accumulate::yes});
  };
}

TEST_P(GpuFusedAttention, EveryKernelThatSuitsMatchesTheOracle) {
  const Size size = GetParam();
  const Problem problem = fused_problem(size, DType::bf16);
  const auto oracle = problem.on_oracle(fused_call(size, false));
  const Tensor documents = first_keys(size.B, size.T, size.document);
  const cuda::AttentionProblem asked = {size.layout, size.scores(documents.view()), size.T, false};
  int suitable = 0;
  for (std::size_t row = 0; row < cuda::kAttentionForward.size(); ++row) {
    const auto& kernel = cuda::kAttentionForward.at(row);
    ASSERT_EQ(kernel.name, cuda::kAttentionBackward.at(row).name);
    if (!cuda::reason_against(kernel, asked, cuda::features_of_kernels()).empty()) continue;
    ++suitable;

    const auto found = problem.on_gpu(row_call(size, row));

    const std::string what = size.str() + " by " + std::string(kernel.name);
    expect_oracle(found[2], oracle[2], tolerance(DType::bf16), what + ", out");
    expect_oracle(found[3], oracle[3], 1e-3, what + ", log_sum_exp");
    expect_oracle(found[4], oracle[4], 2 * tolerance(DType::bf16), what + ", dqkv");
    expect_oracle(found[6], oracle[6], tolerance(DType::bf16), what + ", dbias");
  }
  EXPECT_GE(suitable, 1) << size.str();
}

TEST_P(GpuFusedAttention, TheGradientOfTheBiasIsTheSumOfWhatIsStored) {
  const Size size = GetParam();
  const Problem problem = fused_problem(size, DType::bf16);

  const auto found = problem.on_gpu(fused_call(size, true));

  const auto before = to_doubles(random_tensor(DType::f32, {size.layout.packed_width()}, 3).view());
  const auto dqkv = to_doubles(found[4].view());
  const auto dbias = to_doubles(found[6].view());
  for (std::size_t column = 0; column < dbias.size(); ++column) {
    double sum = before[column];
    double magnitude = std::abs(sum);
    for (std::size_t i = column; i < dqkv.size(); i += dbias.size()) {
      sum += dqkv[i];
      magnitude += std::abs(dqkv[i]);
    }
    ASSERT_NEAR(dbias[column], sum, 1e-2 * magnitude) << size.str() << " column " << column;
  }
}

TEST_P(GpuFusedAttention, DeterministicBackwardRepeatsItsBits) {
  const Size size = GetParam();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Problem problem = fused_problem(size, dtype);
    const auto oracle = problem.on_oracle(fused_call(size, true));

    const auto first = problem.on_gpu(fused_call(size, true));
    const auto second = problem.on_gpu(fused_call(size, true));

    const std::string what = size.str() + " in " + std::string(name_of(dtype));
    EXPECT_TRUE(same_bits(first[4].view(), second[4].view())) << what;
    EXPECT_TRUE(same_bits(first[6].view(), second[6].view())) << what;
    expect_oracle(first[4], oracle[4], 2 * tolerance(dtype), what);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GpuFusedAttention,
    testing::Values(Size{2, 128, {4, 4, 64}}, Size{1, 129, {4, 2, 64}}, Size{3, 77, {3, 3, 32}},
                    Size{2, 200, {6, 2, 128}}, Size{1, 384, {8, 1, 80}}, Size{1, 96, {2, 1, 256}},
                    Size{1, 1024, {2, 2, 64}}, Size{2, 128, {4, 4, 64}, kNoMask},
                    Size{1, 129, {4, 2, 64}, kNoMask}, Size{2, 200, {6, 2, 128}, kNoMask}));

constexpr AttentionMask windowed(Dim window) { return {AttentionMask::Kind::causal, window}; }

// cuDNN's windows; the kernels for documents and capped scores at every width of tiles and beside
// it, with windows, groups of heads, tiles that end early and documents in many tiles or in one.
INSTANTIATE_TEST_SUITE_P(
    Intervals, GpuFusedAttention,
    testing::Values(Size{2, 256, {4, 4, 64}, windowed(100)}, Size{1, 300, {4, 2, 128}, windowed(1)},
                    Size{1, 129, {2, 2, 64}, windowed(500)},
                    Size{1, 200, {2, 1, 256}, windowed(64)}, Size{2, 256, {4, 4, 64}, {}, 50},
                    Size{3, 77, {3, 3, 32}, {}, 9}, Size{2, 333, {6, 2, 128}, {}, 130},
                    Size{1, 500, {8, 1, 80}, {}, 3}, Size{1, 1, {2, 1, 8}, {}, 5},
                    Size{1, 65, {2, 1, 256}, {}, 64}, Size{1, 700, {2, 2, 64}, windowed(150), 400},
                    Size{2, 200, {4, 2, 64}, {}, 0, 2.0}, Size{1, 321, {4, 2, 128}, {}, 0, 0.5},
                    Size{1, 130, {2, 1, 256}, windowed(70), 0, 1.5, 0.1},
                    Size{1, 400, {4, 1, 96}, windowed(90), 170, 3.0, 0.2}));

TEST_F(GpuTest, FusedAttentionKeepsAGraphForEachMask) {
  const Size causal = {2, 96, {2, 2, 64}};
  Size open = causal;
  open.mask = kNoMask;
  const Problem problem = fused_problem(causal, DType::bf16);
  const auto both = [&](const Size& first, const Size& second) {
    return [=](Context& ctx, const Views& v) {
      fused_call(first, false)(ctx, v);
      fused_call(second, false)(ctx, v);
    };
  };

  for (const auto& [first, second] : {std::pair(causal, open), std::pair(open, causal)}) {
    const auto oracle = problem.on_oracle(fused_call(second, false));
    const auto found = problem.on_gpu(both(first, second));
    expect_oracle(found[2], oracle[2], tolerance(DType::bf16), second.str() + ", out");
    expect_oracle(found[4], oracle[4], 2 * tolerance(DType::bf16), second.str() + ", dqkv");
  }
}

TEST_F(GpuTest, FusedAttentionNamesWhatItCannotDo) {
  const auto refused = [](const HeadLayout& layout, DType dtype) -> std::string {
    Context ctx(Device::cuda, 0);
    Tensor qkv(Device::cuda, dtype, {1, 16, layout.packed_width()});
    Tensor out(Device::cuda, dtype, {1, 16, layout.heads * layout.head_width});
    Tensor statistics(Device::cuda, DType::f32, {1, layout.heads, 16});
    try {
      attention_forward(ctx, layout, {}, qkv.view(), out.view(), statistics.view());
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused({2, 2, 64}, DType::f32), testing::HasSubstr("f32"));
  EXPECT_THAT(refused({2, 2, 12}, DType::bf16), testing::HasSubstr("12"));
  EXPECT_THAT(refused({2, 2, 264}, DType::bf16), testing::HasSubstr("264"));
}

/// Operands of a call, of which one may begin one element after an aligned address.
class OffByOne {
 public:
  OffByOne(const Size& size, std::size_t misaligned) : misaligned_(misaligned) {
    take(DType::bf16, size.packed());
    take(DType::bf16, size.out());
    take(DType::f32, size.statistics());
    take(DType::bf16, size.out());
    take(DType::bf16, size.packed());
  }
  [[nodiscard]] const Views& views() const { return views_; }

 private:
  void take(DType dtype, const Shape& shape) {
    const Dim first = views_.size() == misaligned_ ? 1 : 0;
    tensors_.emplace_back(Device::cuda, dtype, Shape{first + shape.numel()});
    views_.push_back(tensors_.back().view().slice(first, shape.numel()).reshaped(shape));
  }
  std::size_t misaligned_;
  std::vector<Tensor> tensors_;
  Views views_;
};

TEST_F(GpuTest, FusedAttentionRefusesMisalignedViews) {
  const Size size = {1, 16, {2, 2, 64}};
  const std::vector<std::string> names = {"qkv", "out", "log_sum_exp", "dout", "dqkv"};
  Context ctx(Device::cuda, 0);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const OffByOne operands(size, i);
    const Views& v = operands.views();
    const auto expect_refused = [&](const std::string& op, const auto& call) {
      try {
        call();
        ADD_FAILURE() << op << " " << names[i] << ": nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::internal) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr(op + " " + names[i] + ": begins"));
      }
    };
    if (i < 3) {
      expect_refused("attention_forward",
                     [&] { attention_forward(ctx, size.layout, size.mask, v[0], v[1], v[2]); });
    }
    expect_refused("attention_backward", [&] {
      attention_backward(ctx, size.layout, size.mask, v[3], {v[0], v[1], v[2]}, {v[4]});
    });
  }
}

class GpuReferenceAttention : public GpuTest, public testing::WithParamInterface<Size> {};

/// qkv, dout, out, probabilities, dprobabilities (scratch), dqkv, positions, state, first keys.
Problem reference_problem(const Size& size, DType dtype) {
  std::vector<double> positions;
  for (Dim b = 0; b < size.B; ++b) positions.push_back(static_cast<double>(5 * b + 3));
  StepState state;
  state.input.step = 11;
  Problem problem(dtype);
  problem.input(random_tensor(dtype, size.packed(), 1))
      .input(random_tensor(dtype, size.out(), 2))
      .output(dtype, size.out())
      .output(dtype, size.square())
      .input(poisoned(dtype, size.square()))
      .output(dtype, size.packed())
      .fixed(tensor_of(DType::i64, {size.B}, positions))
      .fixed(bytes_of(state))
      .fixed(first_keys(size.B, size.T, size.document));
  return problem;
}

Problem::Call reference_call(const Size& size, float probability) {
  return [=](Context& ctx, const Views& v) {
    ctx.set_deterministic(true);
    Dropout dropout;
    dropout.probability = probability;
    dropout.seed = 77;
    dropout.site = 6;
    dropout.sample_position = v[6];
    dropout.state = struct_at<StepState>(v[7]);
    const AttentionScores scores = size.scores(v[8]);
    attention_reference_forward(ctx, size.layout, scores, v[0], dropout, v[2], v[3]);
    attention_reference_backward(ctx, size.layout, scores, v[1], {v[0], v[3], dropout}, v[4], v[5]);
  };
}

TEST_P(GpuReferenceAttention, MatchesTheOracleWithAndWithoutDropout) {
  const Size size = GetParam();
  for (const DType dtype : kGpuTypes) {
    for (const float probability : {0.0F, 0.25F}) {
      const Problem problem = reference_problem(size, dtype);
      // Scores and probabilities are rounded to 16 bits between the GEMMs.
      problem.expect_match(reference_call(size, probability), size.str(),
                           dtype == DType::f32 ? 1.0 : 3.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GpuReferenceAttention,
    testing::Values(Size{1, 1, {1, 1, 1}}, Size{2, 7, {3, 3, 5}}, Size{2, 33, {4, 2, 17}},
                    Size{3, 64, {4, 1, 16}}, Size{1, 131, {2, 2, 32}}, Size{8, 40, {6, 3, 24}},
                    Size{1, 128, {4, 4, 64}}, Size{1, 65, {2, 1, 288}},
                    Size{2, 33, {4, 2, 17}, kNoMask}, Size{1, 131, {2, 2, 32}, kNoMask},
                    Size{2, 64, {4, 2, 16}, windowed(9)}, Size{2, 70, {3, 3, 5}, {}, 8},
                    Size{1, 1100, {1, 1, 16}, windowed(200), 300},
                    Size{2, 48, {4, 1, 24}, {}, 20, 0.7, 0.4},
                    Size{1, 131, {2, 2, 32}, kNoMask, 0, 1.5}));

TEST_F(GpuTest, ReferenceAttentionInTf32IsCloseToTheOracle) {
  const Size size = {2, 96, {4, 2, 48}};
  const Problem problem = reference_problem(size, DType::f32);
  const auto oracle = problem.on_oracle(reference_call(size, 0));
  const auto found = problem.on_gpu([&](Context& ctx, const Views& v) {
    ctx.set_tf32(true);
    reference_call(size, 0)(ctx, v);
  });
  expect_oracle(found[2], oracle[2], 5e-3, "out");
  expect_oracle(found[5], oracle[5], 1e-2, "dqkv");
}

}  // namespace
}  // namespace hyperslab::ops
