// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace hyperslab::comm {

/// The rank of this process as its launcher says it, also before MPI starts; none without one.
[[nodiscard]] std::optional<int> launcher_rank();

/// HYPERSLAB_START_TIMEOUT_SECONDS, or 600; 0: no limit. Throws Error(usage) for another value.
[[nodiscard]] double start_timeout_seconds();

/// A limit of time while MPI starts and ends, where no watchdog looks. If this process does not get
/// through `what` ("the start") in time, it prints one line that names the stopped ranks of its
/// host, if there are any, and ends by _exit(ExitCode::hang); of several ranks of a host the first
/// one prints. Time in which the process was stopped does not count. Without a launcher there is no
/// limit.
class TimeLimit {
 public:
  TimeLimit(std::string what, double seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  TimeLimit(TimeLimit&&) = delete;
  TimeLimit& operator=(TimeLimit&&) = delete;

  /// Lifts all limits of this process: a watchdog looks from here on, or nothing needs to.
  static void lift();

 private:
  class Timer;
  std::unique_ptr<Timer> timer_;
};

}  // namespace hyperslab::comm
