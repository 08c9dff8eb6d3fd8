// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "hyperslab/comm/communicator.hpp"

// The functions of comm that call NCCL, without its headers; defined only in builds with CUDA, so
// callers test `if constexpr (kHasCuda)`.

namespace hyperslab::comm {

class FlightRecorders;

/// A communicator over the members of `parent` on the GPU in use, whose calls `recorders` record;
/// collective over them. A group of one gets the self communicator.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(
    MPI_Comm parent, GroupRole role, const std::shared_ptr<FlightRecorders>& recorders);

/// 22809 for 2.28.9, of the library in use and of the headers.
[[nodiscard]] int nccl_library_version();
[[nodiscard]] int nccl_header_version();

}  // namespace hyperslab::comm
