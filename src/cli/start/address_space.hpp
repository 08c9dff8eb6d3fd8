// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab::cli {

/// Ends the process by one line and ExitCode::device if a limit of its address space (ulimit -v)
/// leaves less than MPI, threads and OpenBLAS take; of several ranks of a host the first one
/// prints. To be called before MPI starts. The same is done before main for the memory of OpenBLAS
/// there: it would wait for memory without end, and other ranks for this one.
void require_address_space();

}  // namespace hyperslab::cli
