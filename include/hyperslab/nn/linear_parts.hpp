// SPDX-License-Identifier: Apache-2.0
// The outputs and options of a linear layer.
#pragma once

#include <string>

#include "hyperslab/nn/adapter_config.hpp"
#include "hyperslab/nn/fp8_config.hpp"
#include "hyperslab/nn/matrix_init.hpp"
#include "hyperslab/nn/tensor_group.hpp"

namespace hyperslab::nn {

/// The sharding of a weight over a tensor group (Shoeybi et al. 2019): column parallel by its
/// outputs (every rank computes other columns of y from all of x), row parallel by its inputs
/// (every rank computes a term of y from its columns of x; the caller sums).
enum class Parallel : std::uint8_t { column, row };

/// One of the named tensors whose outputs lie side by side.
struct LinearOutput {
  std::string name;     ///< "blocks.0.attention.query"
  Dim width = 0;        ///< outputs of the global tensor
  Hyperslab part = {};  ///< outputs that this rank computes; without dimensions: all
  int replicas = 1;     ///< ranks that compute the same ones
  int replica = 0;

  /// `part`, or all outputs if it has no dimensions.
  [[nodiscard]] Hyperslab rows() const {
    return part.offset.rank() == 0 ? Hyperslab::whole({width}) : part;
  }
};

struct LinearOptions {
  Dim input_width = 0;  ///< inputs of the global tensor
  bool bias = true;
  MatrixInit init = {};
  Parallel parallel = Parallel::column;
  AdapterConfig adapter = {};
  Fp8Config fp8 = {};
  layout::Placement expert = layout::replicate();  ///< for the tensors of an expert
};

}  // namespace hyperslab::nn
