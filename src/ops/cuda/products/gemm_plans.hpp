// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "cuda/tools/handles.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"

namespace hyperslab::ops::cuda {

using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Closer<&cublasLtMatmulDescDestroy>>;
using MatrixLayout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Closer<&cublasLtMatrixLayoutDestroy>>;
using Kind = AlgorithmCache::Kind;

/// Descriptors and the algorithm of one kind of GEMM. Absent: cuBLASLt has none.
struct GemmPlan {
  Desc desc;
  MatrixLayout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

/// The gemms of a context.
struct GemmPlans {
  struct Hash {
    std::size_t operator()(const Kind& kind) const;
  };
  std::unordered_map<Kind, GemmPlan, Hash> plans;
  AlgorithmCache kept;      ///< adopted
  std::string platform;     ///< ops::gemm_platform
  std::int64_t chosen = 0;  ///< kinds whose algorithm is not from `kept`
};

/// Made at the first call.
[[nodiscard]] GemmPlans& plans_of(Backend& backend);

/// The algorithm that was adopted for the kind, unless cuBLASLt refuses it here.
[[nodiscard]] std::optional<cublasLtMatmulAlgo_t> kept_algorithm(Backend& backend, const Kind& kind,
                                                                 const GemmPlan& plan);

}  // namespace hyperslab::ops::cuda
