// SPDX-License-Identifier: Apache-2.0
#include "cores.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>

#include "control_groups.hpp"
#include "host_id.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {
namespace {

/// Cores that a process may run on; 0: this one. Empty if the system does not report it.
std::vector<int> affinity(pid_t process) {
  constexpr int kMostCores = 1 << 20;
  for (int count = 1024; count <= kMostCores; count *= 2) {
    std::vector<cpu_set_t> set(CPU_ALLOC_SIZE(count) / sizeof(cpu_set_t));
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(process, bytes, set.data()) != 0) {
      if (errno == EINVAL) continue;  // the kernel's mask is longer
      return {};
    }
    std::vector<int> cores;
    for (int core = 0; core < count; ++core) {
      if (CPU_ISSET_S(core, bytes, set.data())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

double number_in(const std::string& path) {
  double number = -1;
  std::ifstream(path) >> number;
  return number;
}

/// Cores that the group of a folder may use; none: no limit, or no such folder.
std::optional<double> quota_in(const std::string& folder, bool second_version) {
  double quota = -1;
  double period = -1;
  if (second_version) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;  // "max" is no number
  } else {
    quota = number_in(folder + "/cpu.cfs_quota_us");
    period = number_in(folder + "/cpu.cfs_period_us");
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// The first number of SLURM_STEP_TASKS_PER_NODE and the like, which say "4(x2),1"; the largest.
int most_tasks(const std::string& text) {
  int most = 0;
  for (const std::string& part : split_text(text, ','))
    most = std::max(most, std::atoi(part.c_str()));
  return most;
}

}  // namespace

std::vector<CpuQuota> cpu_quotas(const std::string& process_folder) {
  std::vector<CpuQuota> quotas;
  for (const ControlGroup& group : control_groups("cpu", process_folder)) {
    struct stat about {};
    const std::optional<double> cores = quota_in(group.folder, group.second_version);
    if (cores && stat(group.folder.c_str(), &about) == 0) {
      quotas.push_back({fmt::format("{}:{}", about.st_dev, about.st_ino), *cores});
    }
  }
  return quotas;
}

int requested_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr) return 0;
  return static_cast<int>(std::clamp(std::strtol(text, nullptr, 10), 0L, long{INT_MAX}));
}

CoreLimits core_limits(const std::string& host) {
  CoreLimits limits;
  limits.machine = machine_id(host);
  std::ranges::replace(limits.machine, ' ', '_');
  limits.machine_cores = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  limits.cores = affinity(0);
  if (limits.cores.empty()) {
    limits.cores.resize(static_cast<std::size_t>(limits.machine_cores));
    std::iota(limits.cores.begin(), limits.cores.end(), 0);
  }
  limits.quotas = cpu_quotas();
  limits.requested_threads = requested_threads();
  if (::getloadavg(&limits.load, 1) != 1) limits.load = 0;
  return limits;
}

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    if (end > i + 1) text += fmt::format("-{}", cores[end - 1]);
    i = end;
  }
  return text;
}

std::vector<int> cores_of_list(const std::string& text) {
  std::vector<int> cores;
  for (const std::string& part : split_text(text, ',')) {
    int first = 0;
    const char* const end = part.data() + part.size();
    std::from_chars_result read = std::from_chars(part.data(), end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    const bool is_range = read.ec == std::errc() && read.ptr == end && first <= last;
    require(is_range, "a list of cores");
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

std::string to_text(const CoreLimits& limits) {
  std::string text = fmt::format("{} {} {} {} {}", limits.machine, limits.machine_cores,
                                 limits.requested_threads, limits.load, core_list(limits.cores));
  for (const auto& [group, cores] : limits.quotas) text += fmt::format(" {} {}", group, cores);
  return text;
}

CoreLimits limits_of_text(const std::string& text) {
  std::istringstream in(text);
  CoreLimits limits;
  std::string list;
  in >> limits.machine >> limits.machine_cores >> limits.requested_threads >> limits.load >> list;
  limits.cores = cores_of_list(list);
  for (CpuQuota quota; in >> quota.group >> quota.cores;) limits.quotas.push_back(quota);
  return limits;
}

int launched_ranks_here() {
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                     "MV2_COMM_WORLD_LOCAL_SIZE", "PMI_LOCAL_SIZE",
                                     "SLURM_STEP_TASKS_PER_NODE"};
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr) return most_tasks(value);
  }
  return 0;
}

bool seems_crowded() {
  const std::vector<int> mine = affinity(0);
  const std::vector<int> launchers = affinity(getppid());
  std::vector<int> both;
  std::ranges::set_union(mine, launchers, std::back_inserter(both));
  double cores = static_cast<double>(both.size());
  for (const CpuQuota& quota : cpu_quotas()) cores = std::min(cores, std::ceil(quota.cores));
  return !both.empty() && launched_ranks_here() > cores;
}

std::optional<bool> mpi_yields() {
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return std::nullopt;
  std::optional<bool> yields;
  int index = 0;
  int count = 0;
  MPI_T_cvar_handle handle{};
  if (MPI_T_cvar_get_index("mpi_yield_when_idle", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    std::array<int, 8> value{};
    if (count == 1 && MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS) yields = value[0] != 0;
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  return yields;
}

}  // namespace hyperslab::comm
