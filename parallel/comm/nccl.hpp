// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "hyperslab/comm/communicator.hpp"

// What comm has of NCCL, without its headers; defined only in builds with CUDA, so calls stand
// behind `if constexpr (kHasCuda)`.

namespace hyperslab::comm {

class TrailBoard;

/// What the communicators of a process share.
struct NcclShared {
  std::shared_ptr<TrailBoard> board;  ///< where they leave their trails
  int tensor_ctas = 0;  ///< thread blocks of a tensor group's operations; 0: NCCL's choice
};

/// A communicator over the members of `parent` on the GPU in use; collective over them. A group of
/// one gets the self communicator.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(MPI_Comm parent,
                                                                   const std::string& name,
                                                                   const NcclShared& shared);

/// 22809 for 2.28.9, of the library in use and of the headers.
[[nodiscard]] int nccl_library_version();
[[nodiscard]] int nccl_header_version();

}  // namespace hyperslab::comm
