// SPDX-License-Identifier: Apache-2.0
// The shares of ranks in the cores of their machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace hyperslab::comm {

/// CPU time that the processes of a control group have together.
struct CpuQuota {
  std::string group;  ///< equal for the processes that share it; no spaces
  double cores = 0;   ///< CPU seconds a second
};

/// The cores that the system lets one process use. Cores are counted as the system does: hardware
/// threads are cores.
struct CoreLimits {
  std::string machine;           ///< equal for the processes of a machine; no spaces
  int machine_cores = 1;         ///< cores that are online
  std::vector<int> cores;        ///< the affinity mask, ascending, not empty
  std::vector<CpuQuota> quotas;  ///< limits of all control groups that the process is in
  int requested_threads = 0;     ///< OMP_NUM_THREADS; 0: not set
  double load = 0;               ///< machine, last minute; 0: not known
};

/// The threads of one rank, and the reason. Counts of "here" are of its machine.
struct ThreadShare {
  int threads = 1;                ///< threads of this rank
  int fair_threads = 1;           ///< threads of this rank without OMP_NUM_THREADS
  int requested_threads = 0;      ///< OMP_NUM_THREADS; 0: not set
  double cores = 1;               ///< this rank's share of cores; below 1 if there are more ranks
  int allowed_cores = 1;          ///< cores in this rank's affinity mask
  bool cores_are_shared = false;  ///< another rank may run on a core of this one
  int ranks_here = 1;
  int threads_here = 1;        ///< threads of all ranks
  int open_cores_here = 1;     ///< cores that the ranks may use together, by masks and quotas
  int machine_cores = 1;       ///< cores that are online
  int fewest_threads = 1;      ///< least `threads` of any rank of the world
  int most_threads = 1;        ///< largest `threads` of any rank of the world
  double busiest_load = 0;     ///< load of the machine with the most a core
  int busiest_cores = 1;       ///< cores that are online there
  std::optional<bool> yields;  ///< true if MPI gives up the core while it waits; not known: none
  [[nodiscard]] bool more_ranks_than_cores() const { return ranks_here > open_cores_here; }
};

/// The shares of all ranks of a world from their limits. A core is shared equally by the ranks that
/// may run on it, a quota (rounded up to whole cores) by the ranks of its control group; the share
/// is the smaller of both. Threads are the whole cores of the share, at least 1, unless requested.
[[nodiscard]] std::vector<ThreadShare> share_cores(const std::vector<CoreLimits>& ranks);

/// One line for people: threads of a rank, cores and ranks of its machine, whether ranks yield.
[[nodiscard]] std::string describe(const ThreadShare& share);

/// A warning with its remedy if OMP_NUM_THREADS asks for more threads than there are cores;
/// otherwise empty.
[[nodiscard]] std::string warning_of(const ThreadShare& share);

/// One line for people if a machine had more to do than it has cores; otherwise empty.
[[nodiscard]] std::string busy_line(const ThreadShare& share);

}  // namespace hyperslab::comm
