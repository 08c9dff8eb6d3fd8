// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hyperslab::io {

/// Contents of a trace that was written.
struct TraceSummary {
  std::string start;  ///< folder of the timings that it is made of
  int ranks = 0;
  std::vector<std::int64_t> steps;
  std::int64_t events = 0;         ///< spans on tracks
  std::int64_t flows = 0;          ///< messages whose two ends are in it
  std::int64_t lost = 0;           ///< events, operations and messages that found no room
  double clock_error_seconds = 0;  ///< most that clocks of two hosts are apart in it
};

/// Writes the traced steps of a run's newest start that has any, of all its ranks, as one trace in
/// the JSON format of Chrome, which Perfetto reads: a process for each rank with a track for its
/// computation, on a GPU one for its host and one for each stream of the GPU, and a track for each
/// of its groups (more if operations of a group overlap), arrows from sends to receives, and the
/// memory in use. Times are by rank 0's clock, from the beginning of the first traced step. A
/// rank's file is read at a time. Throws Error(data) if there are no timings or no traced step, or
/// a rank's are missing, and Error(storage) if `output` cannot be written.
[[nodiscard]] TraceSummary write_trace(const std::string& run_directory, const std::string& output);

}  // namespace hyperslab::io
