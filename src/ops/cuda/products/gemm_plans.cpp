// SPDX-License-Identifier: Apache-2.0
#include "gemm_plans.hpp"

#include <algorithm>
#include <iterator>

#include "backend.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::ops::cuda {

std::size_t GemmPlans::Hash::operator()(const Kind& kind) const {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const std::int64_t part : kind) {
    hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

GemmPlans& plans_of(Backend& backend) {
  if (!backend.gemms) {
    backend.gemms = std::make_shared<GemmPlans>();
    backend.gemms->platform = gemm_library() + ", " + device_name();
  }
  return *backend.gemms;
}

std::optional<cublasLtMatmulAlgo_t> kept_algorithm(Backend& backend, const Kind& kind,
                                                   const GemmPlan& plan) {
  const GemmPlans& gemms = plans_of(backend);
  const AlgorithmCache::Algorithm* kept = gemms.kept.find(gemms.platform, kind);
  if (kept == nullptr) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof algorithm.data == sizeof *kept);
  std::ranges::copy(*kept, std::begin(algorithm.data));
  cublasLtMatmulHeuristicResult_t needs{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(backend.lt.get(), plan.desc.get(), plan.a.get(), plan.b.get(),
                              plan.c.get(), plan.c.get(), &algorithm, &needs);
  if (status != CUBLAS_STATUS_SUCCESS || needs.workspaceSize > backend.lt_workspace.bytes()) {
    return std::nullopt;
  }
  return algorithm;
}

std::string gemm_library() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

std::string gemm_platform(Context& ctx) { return plans_of(backend_of(ctx)).platform; }

AlgorithmCache algorithms_of(Context& ctx) {
  const GemmPlans& gemms = plans_of(backend_of(ctx));
  AlgorithmCache table;
  for (const auto& [kind, plan] : gemms.plans) {
    if (!plan.algorithm) continue;
    AlgorithmCache::Algorithm algorithm{};
    std::ranges::copy(plan.algorithm->data, algorithm.begin());
    table.add(gemms.platform, kind, algorithm);
  }
  return table;
}

void adopt_algorithms(Context& ctx, const AlgorithmCache& table) {
  Backend& backend = backend_of(ctx);
  GemmPlans& gemms = plans_of(backend);
  gemms.kept = table;
  for (auto& [kind, plan] : gemms.plans) {
    const auto kept = kept_algorithm(backend, kind, plan);
    if (kept) plan.algorithm = kept;
  }
}

std::int64_t chosen_algorithms(Context& ctx) { return plans_of(backend_of(ctx)).chosen; }

}  // namespace hyperslab::ops::cuda
