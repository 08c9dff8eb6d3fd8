// SPDX-License-Identifier: Apache-2.0
// What the watchdog knows of each rank, and what it makes of that; no sockets, no threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "hyperslab/core/recorder.hpp"
#include "trail.hpp"

namespace hyperslab::comm {

/// What a rank tells of itself; goes from rank to rank as it lies in memory.
struct Status {
  static constexpr std::size_t kMostGroups = 10;
  std::uint64_t beats = 0;
  std::int64_t step = 0;
  std::int64_t ended_step = 0;
  std::int64_t awaited_step = 0;
  std::int32_t microbatch = -1;
  Phase phase = Phase::other;
  bool pauses = false;
  std::uint8_t groups = 0;
  std::uint8_t unused = 0;
  std::array<CallState, kMostGroups> calls{};

  [[nodiscard]] static Status of(TrailBoard& board);
  [[nodiscard]] std::span<const CallState> group_calls() const {
    return {calls.data(), std::min<std::size_t>(groups, kMostGroups)};
  }
};
static_assert(std::has_unique_object_representations_v<Status>);

/// How a rank is connected to the one that judges.
enum class Link : std::uint8_t {
  none,       ///< it could not connect, or no one knows
  connected,  ///< or the judging rank itself
  left,       ///< it said farewell
  failed,     ///< it said farewell after an exception
  broken,     ///< without a farewell
};

/// A rank as the judging one sees it; seconds are on the clock that only the awake time moves.
struct Peer {
  std::string name;  ///< "rank 5 (data 0, pipeline 1, tensor 1) host n12"
  Link link = Link::none;
  Status status;
  double heard = 0;   ///< when it last told its status
  double moved = 0;   ///< when its beats last changed, or it left
  double broken = 0;  ///< when its connection broke

  void hear(const Status& told, double now);
};

struct Limits {
  double timeout = 600;
  double silence = 5;  ///< without a status for so long a rank does not answer
  double grace = 0.5;  ///< a break is reported so much later: the job may just be ending
};

struct Verdict {
  bool ends = false;
  std::vector<int> silent;  ///< ranks that do not answer
  std::string line;         ///< for the user, without "hyperslab: " and the line's end
};

/// Until every rank that is there has ended a step: three times the timeout.
[[nodiscard]] double patience(std::span<const Peer> peers, const Limits& limits);

/// Ranks with Link::none play no part; those that left only by the time at which they did, and
/// those that failed excuse later breaks.
[[nodiscard]] Verdict judge(std::span<const Peer> peers, const Limits& limits, double now);

}  // namespace hyperslab::comm
