// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace hyperslab::comm {
namespace {

constexpr double kRounding = 1e-6;  // sums of fractions such as 1/3

/// Ranks of one machine.
struct Neighbours {
  std::map<int, int> on_core;              ///< core -> ranks that may run on it
  std::map<std::string, int> under_quota;  ///< control group -> ranks in it
  std::vector<std::size_t> ranks;

  void add(std::size_t rank, const CoreLimits& limits) {
    ranks.push_back(rank);
    for (const int core : limits.cores) ++on_core[core];
    for (const CpuQuota& quota : limits.quotas) ++under_quota[quota.group];
  }
};

ThreadShare share_of(const CoreLimits& limits, const Neighbours& here) {
  ThreadShare share;
  share.cores = 0;
  for (const int core : limits.cores) {
    const int ranks = here.on_core.at(core);
    share.cores += 1.0 / ranks;
    share.cores_are_shared = share.cores_are_shared || ranks > 1;
  }
  for (const CpuQuota& quota : limits.quotas) {
    share.cores = std::min(share.cores, std::ceil(quota.cores) / here.under_quota.at(quota.group));
  }
  share.allowed_cores = static_cast<int>(limits.cores.size());
  share.machine_cores = std::max(limits.machine_cores, share.allowed_cores);
  share.fair_threads = std::max(1, static_cast<int>(share.cores + kRounding));
  share.requested_threads = limits.requested_threads;
  share.threads = share.requested_threads > 0 ? share.requested_threads : share.fair_threads;
  return share;
}

std::string cores_text(int cores) { return fmt::format("{} core{}", cores, cores == 1 ? "" : "s"); }

}  // namespace

std::vector<ThreadShare> share_cores(const std::vector<CoreLimits>& ranks) {
  std::map<std::string, Neighbours> machines;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    machines[ranks[rank].machine].add(rank, ranks[rank]);
  }
  std::vector<ThreadShare> shares(ranks.size());
  for (const auto& [machine, here] : machines) {
    double cores = 0;
    int threads = 0;
    for (const std::size_t rank : here.ranks) {
      shares[rank] = share_of(ranks[rank], here);
      cores += shares[rank].cores;
      threads += shares[rank].threads;
    }
    for (const std::size_t rank : here.ranks) {
      shares[rank].ranks_here = static_cast<int>(here.ranks.size());
      shares[rank].threads_here = threads;
      shares[rank].open_cores_here = static_cast<int>(cores + kRounding);
    }
  }
  const auto [fewest, most] = std::ranges::minmax(shares, {}, &ThreadShare::threads);
  const CoreLimits& busiest = *std::ranges::max_element(
      ranks, {}, [](const CoreLimits& limits) { return limits.load / limits.machine_cores; });
  for (ThreadShare& share : shares) {
    share.fewest_threads = fewest.threads;
    share.most_threads = most.threads;
    share.busiest_load = busiest.load;
    share.busiest_cores = busiest.machine_cores;
  }
  return shares;
}

std::string describe(const ThreadShare& share) {
  std::string text = fmt::format("threads: {}", share.fewest_threads);
  if (share.most_threads > share.fewest_threads) text += fmt::format(" to {}", share.most_threads);
  text += " a rank";
  if (share.requested_threads > 0) text += ", as OMP_NUM_THREADS says";
  const bool many = share.ranks_here > 1;
  text += fmt::format("; {} rank{} on ", share.ranks_here, many ? "s" : "");
  if (many && !share.cores_are_shared) {
    text += fmt::format("{} of their own each, ", cores_text(share.allowed_cores));
  }
  text += cores_text(share.open_cores_here);
  if (share.open_cores_here < share.machine_cores) {
    text += fmt::format(
        " of this host's {} (the others are closed to them by mpirun's or srun's binding, taskset "
        "or a CPU quota)",
        share.machine_cores);
  }
  if (!share.more_ranks_than_cores()) return text;
  text += "; more ranks than cores";
  if (!share.yields) return text;
  return text + (*share.yields ? ": they yield while they wait"
                               : ", and they do not yield while they wait: set "
                                 "OMPI_MCA_mpi_yield_when_idle=1");
}

std::string warning_of(const ThreadShare& share) {
  if (share.requested_threads <= share.fair_threads) return {};
  if (share.threads_here <= share.open_cores_here) return {};
  return fmt::format(
      "OMP_NUM_THREADS asks for {} threads a rank: {} threads on {}, which is slower than one a "
      "core; unset it, or set it to {}",
      share.requested_threads, share.threads_here, cores_text(share.open_cores_here),
      share.fair_threads);
}

std::string busy_line(const ThreadShare& share) {
  if (share.busiest_load <= share.busiest_cores) return {};
  return fmt::format(
      "busy machine: its load of the last minute is {:.1f} on {}; other programs slow down this "
      "one "
      "and its times vary",
      share.busiest_load, cores_text(share.busiest_cores));
}

}  // namespace hyperslab::comm
