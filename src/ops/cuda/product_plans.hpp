// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "handles.hpp"
#include "hyperslab/ops/products.hpp"

namespace hyperslab::ops::cuda {

using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Closer<&cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Closer<&cublasLtMatrixLayoutDestroy>>;
using Kind = ProductTable::Kind;

/// Descriptors and the algorithm of one kind of product. Absent: cuBLASLt has none.
struct Plan {
  Desc desc;
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm;
};

/// The products of a context.
struct ProductPlans {
  struct Hash {
    std::size_t operator()(const Kind& kind) const;
  };
  std::unordered_map<Kind, Plan, Hash> plans;
  ProductTable kept;        ///< adopted
  std::string place;        ///< ops::product_place
  std::int64_t chosen = 0;  ///< kinds whose algorithm is not from `kept`
};

/// Made at the first call.
[[nodiscard]] ProductPlans& plans_of(Backend& backend);

/// What was adopted for the kind, unless cuBLASLt refuses it here.
[[nodiscard]] std::optional<cublasLtMatmulAlgo_t> kept_algorithm(Backend& backend, const Kind& kind,
                                                                 const Plan& plan);

}  // namespace hyperslab::ops::cuda
