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

/// A communicator over the members of `parent` on the GPU in use, which leaves its trail on
/// `board`; collective over them. A group of one gets the self communicator.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(
    MPI_Comm parent, const std::string& name, const std::shared_ptr<TrailBoard>& board);

/// 22809 for 2.28.9, of the library in use and of the headers.
[[nodiscard]] int nccl_library_version();
[[nodiscard]] int nccl_header_version();

}  // namespace hyperslab::comm
