// SPDX-License-Identifier: Apache-2.0
// The cores and threads that the system lets this process use.
#pragma once

#include <string>
#include <vector>

#include "hyperslab/comm/threads.hpp"

namespace hyperslab::comm {

/// Affinity mask, quotas of control groups, OMP_NUM_THREADS. `host`: see machine_id().
[[nodiscard]] CoreLimits core_limits(const std::string& host);

/// Quotas of the control groups of a process (versions 1 and 2) and of the groups above them, from
/// its folder in /proc; empty if the system does not report it.
[[nodiscard]] std::vector<CpuQuota> cpu_quotas(const std::string& process_folder = "/proc/self");

/// OMP_NUM_THREADS, or the first number of its list; 0 if it is not set or no number.
[[nodiscard]] int requested_threads();

/// "0-3,8" and back. Throws Error(internal) if the text is no list of cores.
[[nodiscard]] std::string core_list(const std::vector<int>& cores);
[[nodiscard]] std::vector<int> cores_of_list(const std::string& text);

/// A line for another rank, and back.
[[nodiscard]] std::string to_text(const CoreLimits& limits);
[[nodiscard]] CoreLimits limits_of_text(const std::string& text);

/// Ranks that the launcher started on this machine, by its environment variables; 0: they do not
/// report them. Needs no MPI.
[[nodiscard]] int launched_ranks_here();

/// True if there seem to be more ranks here than cores, as far as it can be known before MPI_Init:
/// by the masks of this process and of its launcher, which may be wider.
[[nodiscard]] bool seems_crowded();

/// True if MPI yields while it waits, by its own variable; not known: none. Only after MPI_Init.
[[nodiscard]] std::optional<bool> mpi_yields();

}  // namespace hyperslab::comm
