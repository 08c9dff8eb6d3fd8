// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::comm {

struct WatchdogOptions {
  /// The job hangs if no rank makes progress for so long; three times as long until every rank has
  /// read the result of a step. 0: no watchdog.
  double timeout_seconds = 600;
  std::string coordinates;  ///< place of this rank, "data 0, tensor 1, pipeline 1"; may be empty
};

/// Ends a job that hangs or has lost a rank. While it lives, every rank is a client of the monitor
/// ranks 0 and 1: a thread of its own reports to them each second, over TCP and never MPI, the
/// progress of World::activity() and of the communicators. The active monitor is rank 0; rank 1 if
/// rank 0 is silent or gone; any rank for itself if it reaches neither. It decides:
///  - A rank whose connection breaks without an announcement was killed or crashed.
///  - If no rank makes progress within the timeout, the job hangs. The cause is the ranks that do
///    not answer, else those that wait for no other rank, else those that made fewer calls than
///    others wait for. While one rank proceeds, the job does not hang; one that pauses (Pause) and
///    answers has ten times the timeout.
/// It then prints one line on stderr that names these ranks with their step, phase, call on storage
/// and newest call on every communicator, and the calls that the others wait for. Every live rank
/// ends by _exit(ExitCode::hang), and silent ranks are killed if a live one is on the same machine.
/// mpirun and its daemons are ended if they are still there some seconds later, as after the loss
/// of a host. Time in which the active monitor itself was stopped does not count.
///
/// The monitors listen only until every rank has called them: on the loopback if all ranks share a
/// machine, else on all interfaces. Rank 0 draws a secret that MPI brings to the others; both sides
/// of a connection prove that they know it before they send or accept anything else, and every
/// frame carries a keyed hash. MPI's own network must be one that the job's owner trusts.
class Watchdog {
 public:
  /// Collective over the world, which must outlive it and all of whose ranks give the same timeout.
  /// If a rank cannot connect, a warning names it, and it watches only itself.
  Watchdog(World& world, const WatchdogOptions& options);
  /// Announces the end of this rank; not collective. After an exception the others go on watching,
  /// and do not report ranks that end because of it.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  Watchdog(Watchdog&&) = delete;
  Watchdog& operator=(Watchdog&&) = delete;

 private:
  class Guard;
  std::unique_ptr<Guard> guard_;  ///< null without a timeout
};

}  // namespace hyperslab::comm
