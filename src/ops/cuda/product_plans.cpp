// SPDX-License-Identifier: Apache-2.0
#include "product_plans.hpp"

#include <algorithm>
#include <iterator>

#include "../backend.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::ops::cuda {

std::size_t ProductPlans::Hash::operator()(const Kind& kind) const {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const std::int64_t part : kind) {
    hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

ProductPlans& plans_of(Backend& backend) {
  if (!backend.products) {
    backend.products = std::make_shared<ProductPlans>();
    backend.products->place = product_library() + ", " + device_name();
  }
  return *backend.products;
}

std::optional<cublasLtMatmulAlgo_t> kept_algorithm(Backend& backend, const Kind& kind,
                                                   const Plan& plan) {
  const ProductPlans& products = plans_of(backend);
  const ProductTable::Algorithm* kept = products.kept.find(products.place, kind);
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

std::string product_library() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

std::string product_place(Context& ctx) { return plans_of(backend_of(ctx)).place; }

ProductTable products_of(Context& ctx) {
  const ProductPlans& products = plans_of(backend_of(ctx));
  ProductTable table;
  for (const auto& [kind, plan] : products.plans) {
    if (!plan.algorithm) continue;
    ProductTable::Algorithm algorithm{};
    std::ranges::copy(plan.algorithm->data, algorithm.begin());
    table.add(products.place, kind, algorithm);
  }
  return table;
}

void adopt_products(Context& ctx, const ProductTable& table) {
  Backend& backend = backend_of(ctx);
  ProductPlans& products = plans_of(backend);
  products.kept = table;
  for (auto& [kind, plan] : products.plans) {
    const auto kept = kept_algorithm(backend, kind, plan);
    if (kept) plan.algorithm = kept;
  }
}

std::int64_t chosen_products(Context& ctx) { return plans_of(backend_of(ctx)).chosen; }

}  // namespace hyperslab::ops::cuda
