// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::comm {

struct WatchdogOptions {
  /// No rank gets anything done for so long: the job hangs. Three times as long until
  /// every rank has read the result of a step. 0: no one watches.
  double timeout_seconds = 600;
  std::string coordinates;  ///< of this rank, "data 0, pipeline 1, tensor 1"; may be empty
};

/// Ends a job that hangs or has lost a rank. While it lives a thread of its own on every rank tells
/// ranks 0 and 1 each second, over TCP and never MPI, how far World::activity() and the
/// communicators are. Rank 0 (rank 1 where rank 0 is silent or gone; any rank by itself where both
/// are out of reach) judges:
///  - A rank whose connection breaks without a farewell was killed or crashed.
///  - Where no rank got anything done within the timeout the job hangs, because of the ranks that
///    do not answer, else of those that wait for nobody, else of those that made fewer calls than
///    others wait for. As long as one rank gets on, or pauses (Pause) and answers, it does not.
/// It then prints one line on stderr that names these ranks with their step, phase and newest call
/// on every communicator, and what the others wait for; every live rank ends by
/// _exit(ExitCode::hang), and silent ranks are killed where a live one is on the same machine. Time
/// in which the judging process itself was stopped does not count.
///
/// Ranks 0 and 1 listen only until every rank has called them: on the loopback if all ranks share a
/// machine, else on all interfaces. Rank 0 draws a secret that MPI brings to the others; both sides
/// of a connection prove that they know it before either tells or believes anything, and every
/// frame carries a keyed hash. MPI's own network must be one that the job's owner trusts.
class Watchdog {
 public:
  /// Collective over the world, which must outlive it and all of whose ranks give the same timeout.
  /// Where a rank cannot connect it warns, and that rank watches itself alone.
  Watchdog(World& world, const WatchdogOptions& options);
  /// Says farewell; not collective. Behind an exception the others go on watching, and do not
  /// report ranks that end because of it.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  Watchdog(Watchdog&&) = delete;
  Watchdog& operator=(Watchdog&&) = delete;

 private:
  class Guard;
  std::unique_ptr<Guard> guard_;  ///< null if no one watches
};

}  // namespace hyperslab::comm
