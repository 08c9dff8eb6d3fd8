// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>

#include "hyperslab/comm/communicator.hpp"

namespace hyperslab::comm {

/// MPI's names for our dtypes and reductions. MPI knows no 2-byte floats: bf16 and f16 are own
/// datatypes, their sums and maxima own operations that convert to f32, combine and round.
class MpiTypes {
 public:
  MpiTypes();
  ~MpiTypes();
  MpiTypes(const MpiTypes&) = delete;
  MpiTypes& operator=(const MpiTypes&) = delete;
  MpiTypes(MpiTypes&&) = delete;
  MpiTypes& operator=(MpiTypes&&) = delete;

  [[nodiscard]] MPI_Datatype type(DType dtype) const;
  [[nodiscard]] MPI_Op op(DType dtype, ReduceOp op) const;

 private:
  MPI_Datatype bf16_ = MPI_DATATYPE_NULL;
  MPI_Datatype f16_ = MPI_DATATYPE_NULL;
  std::array<MPI_Op, 2> bf16_ops_{MPI_OP_NULL, MPI_OP_NULL};  ///< by ReduceOp
  std::array<MPI_Op, 2> f16_ops_{MPI_OP_NULL, MPI_OP_NULL};
};

}  // namespace hyperslab::comm
