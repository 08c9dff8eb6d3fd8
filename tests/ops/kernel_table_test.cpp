// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/attention/cached_table.hpp"
#include "cuda/attention/table.hpp"
#include "cuda/experts/product_table.hpp"
#include "cuda/products/activation_table.hpp"
#include "cuda/products/decode_block.hpp"
#include "cuda/products/linear_table.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr AttentionMask kCausal = {};
constexpr AttentionMask kAll = {AttentionMask::Kind::none, 0};

AttentionProblem problem_of(Dim width, const AttentionMask& mask, Dim T) {
  return {{12, 12, width}, mask, T, false};
}

constexpr Features kOther = {};

/// A view that is there; nothing reads it.
CView documents() {
  static std::array<int, 1> first_keys = {};
  return {first_keys.data(), DType::i32, Device::cpu, {1, 1}};
}

std::string_view chosen(const AttentionProblem& problem, Features features) {
  const std::string_view forward = choose(kAttentionForward, problem, features).name;
  EXPECT_EQ(choose(kAttentionBackward, problem, features).name, forward);
  return forward;
}

TEST(AttentionTable, ChoosesByProblem) {
  EXPECT_EQ(chosen(problem_of(64, kCausal, 1024), kHopper), "warpgroups");
  EXPECT_EQ(chosen(problem_of(64, kCausal, 1024), kOther), "cudnn");
  EXPECT_EQ(chosen(problem_of(64, kCausal, 2048), kHopper), "warpgroups");
  EXPECT_EQ(chosen(problem_of(64, kCausal, 2049), kHopper), "cudnn");
  EXPECT_EQ(chosen(problem_of(64, {AttentionMask::Kind::causal, 256}, 1024), kHopper), "cudnn");
  EXPECT_EQ(chosen(problem_of(128, kCausal, 1024), kHopper), "cudnn");
  EXPECT_EQ(chosen(problem_of(96, kCausal, 1024), kHopper), "cudnn");
  EXPECT_EQ(chosen(problem_of(64, kAll, 1024), kHopper), "cudnn");
}

TEST(AttentionTable, TakesOurKernelsForCapsDocumentsAndOneOrder) {
  AttentionProblem capped = problem_of(128, kCausal, 4096);
  capped.scores.softcap = 50;
  EXPECT_EQ(chosen(capped, kHopper), "warpgroups");
  EXPECT_EQ(chosen(capped, kOther), "tiles");
  capped.layout.head_width = 256;
  EXPECT_EQ(chosen(capped, kHopper), "tiles");
  AttentionProblem apart = problem_of(64, {AttentionMask::Kind::causal, 256}, 8192);
  apart.scores.first_keys = documents();
  EXPECT_EQ(chosen(apart, kHopper), "warpgroups");
  EXPECT_EQ(chosen(apart, kOther), "tiles");
  AttentionProblem ordered = problem_of(128, kCausal, 8192);
  ordered.deterministic = true;
  EXPECT_EQ(chosen(ordered, kHopper), "warpgroups");
  EXPECT_EQ(chosen(ordered, kOther), "cudnn");
}

TEST(AttentionTable, SaysWhyEarlierRowsDoNotSuit) {
  const auto against = [](const AttentionProblem& problem, std::size_t row, Features features) {
    return std::string(reason_against(kAttentionForward.at(row), problem, features));
  };
  EXPECT_EQ(against(problem_of(64, kCausal, 1024), 0, kHopper), "");
  EXPECT_EQ(against(problem_of(64, kCausal, 1024), 0, kOther),
            "another compute capability, or a build without its kernels");
  EXPECT_EQ(against(problem_of(80, kCausal, 1024), 0, kHopper), "head width is not 64 or 128");
  EXPECT_EQ(against(problem_of(128, kCausal, 1024), 0, kHopper),
            "cuDNN is faster with heads of 128");
  EXPECT_EQ(against(problem_of(64, kCausal, 4096), 0, kHopper),
            "cuDNN is faster beyond 2048 tokens");
  EXPECT_EQ(against(problem_of(64, kAll, 1024), 0, kHopper), "mask is not causal");
  EXPECT_EQ(against(problem_of(64, kCausal, 1024), 1, kHopper),
            "slower than cuDNN without caps and documents");
  AttentionProblem capped = problem_of(64, kCausal, 1024);
  capped.scores.softcap = 50;
  EXPECT_EQ(against(capped, 2, kHopper), "scores are capped");
}

/// The choice as a formula, over every combination of the parts of a problem.
TEST(AttentionTable, HasARowForEveryProblem) {
  for (int bits = 0; bits < 64; ++bits) {
    const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
    for (const Dim width : {32, 64, 128, 256}) {
      for (const Dim T : {1, 2048, 2049}) {
        AttentionProblem problem = problem_of(width, bit(0) ? kAll : kCausal, T);
        if (!bit(0)) problem.scores.mask.window = bit(1) ? 64 : 0;
        problem.scores.softcap = bit(2) ? 30 : 0;
        if (bit(3)) problem.scores.first_keys = documents();
        problem.deterministic = bit(4);
        const bool beyond = bit(2) || bit(3);
        const bool outruns = width == 64 && T <= 2048 && problem.scores.mask.window == 0;
        const bool warpgroups =
            !bit(0) && (beyond || bit(4) || outruns) && bit(5) && (width == 64 || width == 128);
        EXPECT_EQ(chosen(problem, bit(5) ? kHopper : kOther),
                  warpgroups ? "warpgroups" : (beyond ? "tiles" : "cudnn"))
            << bits << ' ' << width << ' ' << T;
      }
    }
  }
}

/// A view that nothing reads.
CView there(const Shape& shape, DType dtype = DType::bf16) {
  alignas(16) static std::array<char, 16> memory = {};
  return {memory.data(), dtype, Device::cpu, shape};
}
View writable(const Shape& shape, DType dtype = DType::bf16) {
  alignas(16) static std::array<char, 16> memory = {};
  return {memory.data(), dtype, Device::cpu, shape};
}

/// Two samples of so many new tokens after 100 others; page_tokens 0: a cache without pages.
CacheProblem cached(Dim tokens, Dim width, Dim page_tokens, DType dtype = DType::bf16) {
  const HeadLayout layout = {4, 2, width};
  const Shape keys = page_tokens > 0 ? Shape{64, page_tokens, 2 * width} : Shape{2, 512, 2 * width};
  KeyValueCache cache = {writable(keys, dtype), writable(keys, dtype), 100};
  if (page_tokens > 0) cache.pages = there({2, 32}, DType::i32);
  return {layout, AttentionMask(),
          {},     there({2, tokens, 8 * width}, dtype),
          cache,  there({2, tokens, 4 * width}, dtype)};
}

std::string_view chosen(const CacheProblem& problem, const Features& features = kHopper) {
  return choose(kAttentionCached, problem, features).name;
}

TEST(CachedAttentionTable, ChoosesByTokensPagesAndHeads) {
  EXPECT_EQ(chosen(cached(1, 64, 0)), "decode");
  EXPECT_EQ(chosen(cached(1, 64, 0), kOther), "teams");
  EXPECT_EQ(chosen(cached(1, 64, 0, DType::f32)), "decode");
  EXPECT_EQ(chosen(cached(1, 64, 16)), "teams");
  EXPECT_EQ(chosen(cached(1, 80, 0)), "any width");
  EXPECT_EQ(chosen(cached(2, 64, 0)), "teams");
  EXPECT_EQ(chosen(cached(31, 64, 16)), "teams");
  EXPECT_EQ(chosen(cached(31, 80, 16)), "any width");
  EXPECT_EQ(chosen(cached(32, 64, 16)), "warpgroups");
  EXPECT_EQ(chosen(cached(32, 64, 0)), "warpgroups");
  EXPECT_EQ(chosen(cached(32, 64, 8)), "tiles");
  EXPECT_EQ(chosen(cached(32, 64, 16), kOther), "tiles");
  EXPECT_EQ(chosen(cached(32, 256, 16)), "tiles");
  EXPECT_EQ(chosen(cached(32, 64, 16, DType::f32)), "teams");
  EXPECT_EQ(chosen(cached(32, 264, 16)), "any width");
}

TEST(CachedAttentionTable, SamplesOfTheirOwnLengthsAreNotDecoded) {
  CacheProblem problem = cached(1, 64, 0);
  problem.cache.past.live = there({1}, DType::i32);
  EXPECT_EQ(chosen(problem), "decode");
  problem.cache.past.live = there({2}, DType::i32);
  EXPECT_EQ(chosen(problem), "teams");
  EXPECT_EQ(reason_against(kAttentionCached.at(0), problem, kHopper),
            "lengths are given sample by sample");
}

TEST(DecodeBlockTable, TakesCausalBlocksWithNorms) {
  const CacheProblem of_cache = cached(1, 64, 0);
  DecodeBlock block;
  block.heads = of_cache.layout;
  block.cache = of_cache.cache;
  block.attention_norm.kind = block.mlp_norm.kind = NormKind::rmsnorm;
  DecodeStream stream;
  stream.residual = writable({1, 1, 256});
  stream.qkv = writable({1, 1, 8 * 64});
  const auto reason = [&] {
    return reason_against(kDecodeBlock.at(0), DecodeBlockProblem{block, stream}, kHopper);
  };

  EXPECT_EQ(reason(), "");
  block.scores.mask.kind = AttentionMask::Kind::none;
  EXPECT_EQ(reason(), "mask is not causal");
  block.scores.mask = {};
  block.cache = cached(1, 64, 16).cache;
  EXPECT_EQ(reason(), "cache is in pages");
  block.cache = of_cache.cache;
  block.mlp_norm.kind = NormKind::none;
  EXPECT_EQ(reason(), "a sublayer has no norm before it");
}

/// A table's rows, as far as this test looks at them.
struct Row {
  std::string name;
  std::string source;
  std::string kernels;
};
std::vector<Row> all_rows() {
  std::vector<Row> rows;
  const auto add = [&](const auto& table) {
    for (const auto& row : table) {
      rows.push_back({std::string(row.name), std::string(row.source), std::string(row.kernels)});
    }
  };
  add(kAttentionForward);
  add(kAttentionBackward);
  add(kAttentionCached);
  add(kActivationForward);
  add(kActivationBackward);
  add(kLinearForward);
  add(kDecodeBlock);
  add(kExpertsForward);
  add(kExpertsBackwardInput);
  add(kExpertsBackwardWeight);
  return rows;
}

TEST(KernelTables, RowsNameKernelsOfTheirFiles) {
  int named = 0;
  for (const Row& row : all_rows()) {
    EXPECT_EQ(row.source.empty(), row.kernels.empty()) << row.name;
    if (row.source.empty()) continue;
    std::ifstream in(std::string(HYPERSLAB_OPS_CUDA_SOURCES) + "/" + row.source);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::istringstream kernels(row.kernels);
    for (std::string kernel; kernels >> kernel; ++named) {
      EXPECT_NE(text.find(kernel + "("), std::string::npos) << kernel << " in " << row.source;
    }
  }
  EXPECT_GE(named, 15);
}

/// The rules that stood in suits_plain_rows, suits_ring and matrix_vector.
TEST(LinearTable, ChoosesAsTheFormerRules) {
  for (const Dim rows : {1, 7, 8, 9, 4096}) {
    for (const Dim M : {8, 16, 24, 1000}) {
      for (const Dim K : {4, 8, 768, 772}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          for (const bool accumulate : {false, true}) {
            const LinearProblem problem = {there({rows, K}, dtype), there({M, K}, dtype),
                                           accumulate};
            const bool few = !accumulate && dtype != DType::f32 && rows <= 8 && K % 8 == 0;
            EXPECT_EQ(choose(kLinearForward, problem, kHopper).name,
                      few ? "plain rows" : "cuBLASLt");
            EXPECT_EQ(choose(kLinearForward, problem, kOther).name, few ? "few rows" : "cuBLASLt");
            const LinearProblem gated = {problem.x, problem.weight, accumulate, true};
            EXPECT_EQ(suits_plain_rows(gated).empty(), few && M % 16 == 0);
          }
        }
      }
    }
  }
}

ActivationProblem product_of(Dim rows, Dim depth, Dim columns) {
  return {.rows = rows,
          .depth = depth,
          .columns = columns,
          .dtype = DType::bf16,
          .activation = Activation::gelu_tanh,
          .is_aligned = true,
          .is_pre_aligned = true,
          .deterministic = false,
          .is_in_place = false};
}

/// The rules that stood in linear_activation_forward and linear_activation_backward_input.
TEST(ActivationTable, ChoosesAsTheFormerRules) {
  for (const Dim rows : {1, 4, 8, 9, 64, 512, 4096}) {
    for (const Dim depth : {768, 1024, 1032, 772}) {
      for (const Activation activation : {Activation::gelu, Activation::gelu_tanh}) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          for (const int bits : {0, 1, 2, 3, 4, 8, 15}) {
            ActivationProblem problem = product_of(rows, depth, 3072);
            problem.activation = activation;
            problem.dtype = dtype;
            problem.deterministic = (bits & 1) != 0;
            problem.is_pre_aligned = (bits & 2) == 0;
            problem.is_aligned = problem.is_pre_aligned && (bits & 4) == 0;
            problem.is_in_place = (bits & 8) != 0;
            const bool tiled = size_of(dtype) == 2 && depth % 8 == 0 && problem.is_aligned &&
                               (rows + 127) / 128 * 16 >= 64;
            const bool fusable = activation == Activation::gelu_tanh && dtype != DType::f32 &&
                                 problem.is_pre_aligned;
            const std::string_view forward =
                tiled && !problem.deterministic && depth <= 1024 ? "warpgroups"
                : fusable && !problem.deterministic && rows > kMatrixVectorRows
                    ? "cuBLASLt with epilogue"
                    : "a product, then the activation";
            EXPECT_EQ(choose(kActivationForward, problem, kHopper).name, forward);
            const std::string_view backward = tiled                 ? "warpgroups"
                                              : problem.is_in_place ? "cuBLASLt in blocks"
                                              : fusable             ? "cuBLASLt with epilogue"
                                                        : "a product, then the activation";
            EXPECT_EQ(choose(kActivationBackward, problem, kHopper).name, backward);
          }
        }
      }
    }
  }
  EXPECT_EQ(choose(kActivationForward, product_of(4096, 768, 3072), kOther).name,
            "cuBLASLt with epilogue");
}

ExpertsProblem of_experts(Dim rows, Dim depth, Dim columns, Dim experts = 8) {
  return {.experts = experts,
          .rows = rows,
          .depth = depth,
          .columns = columns,
          .dtype = DType::bf16,
          .is_aligned = true};
}

TEST(ExpertsTable, TakesWideTilesWhereTheyAreEnough) {
  const auto forward = [](const ExpertsProblem& problem, Features features) {
    const std::string_view name = choose(kExpertsForward, problem, features).name;
    EXPECT_EQ(choose(kExpertsBackwardInput, problem, features).name, name);
    return name;
  };
  EXPECT_EQ(forward(of_experts(16384, 2048, 2048), kHopper), "warpgroups, 256 columns");
  EXPECT_EQ(forward(of_experts(16384, 2048, 2048), kOther), "plain tiles");
  EXPECT_EQ(forward(of_experts(256, 2048, 2048), kHopper), "warpgroups, 128 columns");
  EXPECT_EQ(forward(of_experts(65536, 2048, 128), kHopper), "warpgroups, 128 columns");
  const auto weight = [](const ExpertsProblem& problem) {
    return choose(kExpertsBackwardWeight, problem, kHopper).name;
  };
  EXPECT_EQ(weight(of_experts(64, 2048, 2048)), "warpgroups, 256 columns");
  EXPECT_EQ(weight(of_experts(65536, 256, 512)), "warpgroups, 128 columns");
}

TEST(ExpertsTable, LeavesAwkwardSizesToPlainTiles) {
  const auto reason = [](const ExpertsProblem& problem) {
    EXPECT_EQ(choose(kExpertsForward, problem, kHopper).name, "plain tiles");
    EXPECT_EQ(choose(kExpertsBackwardWeight, problem, kHopper).name, "plain tiles");
    EXPECT_EQ(suits_wide_expert_tiles(problem), suits_expert_tiles(problem));
    return suits_expert_tiles(problem);
  };
  ExpertsProblem problem = of_experts(16384, 2048, 2048);
  problem.dtype = DType::f32;
  EXPECT_EQ(reason(problem), "elements are not 16 bits wide");
  problem.dtype = DType::f16;
  problem.is_aligned = false;
  EXPECT_EQ(reason(problem), "operands do not begin at multiples of 16 bytes");
  EXPECT_EQ(reason(of_experts(16384, 2044, 2048)), "rows are not a multiple of 16 bytes");
  EXPECT_EQ(reason(of_experts(16384, 2048, 2044)), "rows are not a multiple of 16 bytes");
  EXPECT_EQ(reason(of_experts(16384, 2048, 2048, 1025)), "more than 1,024 experts");
  EXPECT_EQ(reason(of_experts(0, 2048, 2048)), "no or too many rows");
}

}  // namespace
}  // namespace hyperslab::ops::cuda
