// SPDX-License-Identifier: Apache-2.0
// How the watchdog ends processes: nothing here waits for a lock that a hanging thread may hold.
#pragma once

#include <string>

namespace hyperslab::comm {

/// "hyperslab: <line>" on stderr, in one write.
void print_line(const std::string& line);
/// _exit(ExitCode::hang).
[[noreturn]] void end_process();
/// Kills another process of this machine a second from now, when this one has ended: mpirun takes
/// the exit code of the process that ends first.
void kill_later(int process);

}  // namespace hyperslab::comm
