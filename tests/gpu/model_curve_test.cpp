// SPDX-License-Identifier: Apache-2.0
// The first 100 steps of GPT-2 124M in bf16 beside fp32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "gpu/model_run.hpp"
#include "io/dataset/files.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab {
namespace {

constexpr std::int64_t kSteps = 100;
constexpr Dim kVocabulary = 50257;
constexpr Dim kTokens = kSteps * 16 * 1024 + 1;
constexpr double kNats = 0.02;

constexpr const char* kDeck = R"(
run: {name: curve, seed: 1, device: cuda}
model: {family: gpt2, layers: 12, width: 768, heads: 12, vocabulary: 50257, context: 1024}
data: {train: [filled below]}
optimizer: {lr: 6.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0}
schedule: {name: cosine, warmup_steps: 700}
train: {steps: 1000, global_batch: 16, microbatch: 16}
)";

/// Draws of ids, the frequent ones first, each about half as frequent at twice the index.
class Zipf {
 public:
  explicit Zipf(Dim vocabulary) : cumulative_(static_cast<std::size_t>(vocabulary)) {
    double sum = 0;
    for (std::size_t i = 0; i < cumulative_.size(); ++i) {
      cumulative_[i] = sum += std::pow(static_cast<double>(i) + 2.7, -1.1);
    }
  }
  template <class Random>
  std::int32_t draw(Random& random) const {
    const double draw = static_cast<double>(random() >> 11) * 0x1p-53 * cumulative_.back();
    return static_cast<std::int32_t>(std::ranges::upper_bound(cumulative_, draw) -
                                     cumulative_.begin());
  }

 private:
  std::vector<double> cumulative_;
};

/// An eighth of the ids follows from the one before, the others are drawn alone.
std::vector<std::uint16_t> structured_tokens() {
  const Zipf zipf(kVocabulary);
  std::mt19937_64 random(1);
  std::vector<std::int32_t> follower(static_cast<std::size_t>(kVocabulary));
  for (std::int32_t& id : follower) id = zipf.draw(random);
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(kTokens));
  std::int32_t last = 0;
  for (std::uint16_t& token : tokens) {
    const bool follows = random() % 8 == 0;
    last = follows ? follower[static_cast<std::size_t>(last)] : zipf.draw(random);
    token = static_cast<std::uint16_t>(last);
  }
  return tokens;
}

std::vector<double> losses(const std::string& path, const test::Overrides& precision) {
  using test::operator+;
  test::ModelRun run(
      test::read_model(kDeck, test::Overrides{"data.train=[" + path + "]"} + precision));
  std::vector<double> out;
  for (std::int64_t step = 1; step <= kSteps; ++step) out.push_back(run.step(step));
  return out;
}

class GpuModelCurve : public test::GpuTest {
 protected:
  GpuModelCurve() {
    test::write_file(path_, test::llmc(20240520, 1, kTokens, structured_tokens()));
  }
  test::TempFolder folder_;
  std::string path_ = folder_.path() + "/tokens.bin";
};

TEST_F(GpuModelCurve, Gpt2InBf16FollowsFp32) {
  const std::vector<double> bf16 = losses(path_, {"precision.compute=bf16"});
  const std::vector<double> fp32 = losses(path_, {"precision.compute=fp32"});

  double worst = 0;
  for (std::size_t i = 0; i < fp32.size(); ++i) {
    const double apart = std::abs(bf16[i] - fp32[i]);
    EXPECT_LE(apart, kNats) << "step " << i + 1 << ": bf16 " << bf16[i] << ", fp32 " << fp32[i];
    worst = std::max(worst, apart);
  }
  std::printf("124M, 100 steps: loss %.4f to %.4f in fp32, to %.4f in bf16; at most %.4f apart\n",
              fp32.front(), fp32.back(), bf16.back(), worst);
  EXPECT_NEAR(fp32.front(), std::log(static_cast<double>(kVocabulary)), 0.3);
  EXPECT_LT(fp32.back(), fp32.front() - 1.5);  // something was learned
  EXPECT_NE(bf16, fp32);
}

TEST_F(GpuModelCurve, Gpt2In8BitProductsFollowsBf16) {
  const std::vector<double> bf16 = losses(path_, {"precision.compute=bf16"});
  for (const char* gemm : {"fp8_tensor", "fp8_row", "fp8_block"}) {
    const std::vector<double> fp8 =
        losses(path_, {"precision.compute=bf16", std::string("precision.gemm=") + gemm,
                       "precision.fp8_min_width=768"});
    std::printf("124M, 100 steps: loss %.4f in bf16, %.4f with products in %s\n", bf16.back(),
                fp8.back(), gemm);
    EXPECT_NEAR(fp8.back(), bf16.back(), kNats) << gemm;
    EXPECT_NE(fp8, bf16);
  }
}

}  // namespace
}  // namespace hyperslab
