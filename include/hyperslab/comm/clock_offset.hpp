// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::comm {

/// The seconds to add to a time of this rank's monotonic clock to get the time on rank 0's.
struct ClockOffset {
  double seconds = 0;
  double error_seconds = 0;  ///< at most so much off: half of the fastest round trip
};

/// Collective over the world. The ranks of a machine have one clock: nothing is sent among them,
/// and the first rank of every other machine asks rank 0 for its time, some times; the answer that
/// came back fastest counts (Cristian 1989).
[[nodiscard]] ClockOffset measure_clock_offset(World& world);

/// measure_clock_offset for given clocks; ranks with equal `machine` share one. For tests.
[[nodiscard]] ClockOffset measure_clock_offset(World& world, const std::string& machine,
                                               const std::function<double()>& clock);

}  // namespace hyperslab::comm
