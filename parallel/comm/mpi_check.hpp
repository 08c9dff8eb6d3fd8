// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <source_location>
#include <string>
#include <string_view>

namespace hyperslab::comm {

/// Throws if `code` is not MPI_SUCCESS: "communicator <name>: <call> failed: <MPI's text>".
/// Wrong arguments are internal errors, everything else is the environment's (device).
void check_mpi(int code, std::string_view call, std::string_view communicator,
               std::source_location where = std::source_location::current());

/// False before MPI_Init, after MPI_Finalize, and while an exception unwinds the stack, when peers
/// may sit in another call: handles are then left to the end of the process.
[[nodiscard]] bool may_free_mpi_handles();

/// The caller's rank in `comm`, and its size; `communicator` is the name for errors.
[[nodiscard]] int rank_in(MPI_Comm comm, std::string_view communicator);
[[nodiscard]] int size_of_group(MPI_Comm comm, std::string_view communicator);
/// The rank in MPI_COMM_WORLD of the first member of `comm`.
[[nodiscard]] int leader_of(MPI_Comm comm, std::string_view communicator);

}  // namespace hyperslab::comm

/// HS_MPI(name, MPI_Barrier(comm)): the call, checked.
#define HS_MPI(communicator, expression) \
  ::hyperslab::comm::check_mpi((expression), #expression, (communicator))
