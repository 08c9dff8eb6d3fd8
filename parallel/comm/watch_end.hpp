// SPDX-License-Identifier: Apache-2.0
// The watchdog's ways to end processes: none waits for a lock that a hanging thread may hold.
#pragma once

#include <optional>
#include <string>

namespace hyperslab::comm {

/// A process; its start distinguishes it from a later one with the same number.
struct Process {
  int id = 0;
  std::string name;  ///< "mpirun"
  char state = 'R';  ///< as in /proc/PID/stat; T: stopped
  int parent = 0;
  std::string start_time;  ///< in ticks since the machine started
};
/// The system's view of a process; none if it is gone.
[[nodiscard]] std::optional<Process> process_of(int id);
/// mpirun or its like among the ancestors of a process, with nothing but shells between.
[[nodiscard]] std::optional<Process> launcher_of(int process);

/// "hyperslab: <line>" on stderr, in one write.
void print_line(const std::string& line);
/// _exit(ExitCode::hang).
[[noreturn]] void end_process();
/// Kills another process of this machine a second from now, when this one has ended: mpirun takes
/// the exit code of the process that ends first.
void kill_later(int process);
/// Ends mpirun, mpiexec, orted, prted or srun above this process if it is still there in
/// kLauncherSeconds: one that has lost a host waits for it for ever. It then ends by SIGKILL, so
/// that its exit code is 137.
void end_launcher_later();
inline constexpr double kLauncherSeconds = 5;

}  // namespace hyperslab::comm
