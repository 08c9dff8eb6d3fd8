// SPDX-License-Identifier: Apache-2.0
// The watchdog's knowledge of each rank, and its diagnosis; no sockets, no threads.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "flight_recorder.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab::comm {

/// The report of a rank about itself. It is sent to other ranks byte by byte.
struct Status {
  static constexpr std::size_t kMostGroups = 12;
  static constexpr std::size_t kMostOfTask = 128;
  std::uint64_t beats = 0;
  std::int64_t step = 0;
  std::int64_t ended_step = 0;
  std::int64_t awaited_step = 0;
  std::int32_t microbatch = -1;
  Phase phase = Phase::other;
  bool pauses = false;       ///< in a Pause, or in a call on storage
  bool stores = false;       ///< in a call on storage
  bool awaits_save = false;  ///< waits for a checkpoint that threads of the ranks write
  std::uint8_t groups = 0;
  std::array<std::uint8_t, 7> unused{};
  std::array<CallState, kMostGroups> calls{};
  std::array<char, kMostOfTask> task{};  ///< a running call on storage or Pause; ends in zeros

  [[nodiscard]] static Status of(FlightRecorders& recorders);
  [[nodiscard]] std::span<const CallState> group_calls() const {
    return {calls.data(), std::min<std::size_t>(groups, kMostGroups)};
  }
};
static_assert(std::has_unique_object_representations_v<Status>);

/// The connection of a rank to the monitor.
enum class Link : std::uint8_t {
  none,       ///< it could not connect, or that is not known
  connected,  ///< or it is the monitor itself
  left,       ///< it announced its end
  failed,     ///< it announced its end after an exception
  broken,     ///< the connection closed without an announcement
};

/// A rank as the monitor sees it; seconds are on a clock that stands while the monitor is stopped.
struct Peer {
  std::string name;  ///< "rank 5 (data 0, tensor 1, pipeline 1) host n12"
  Link link = Link::none;
  Status status;
  double heard = 0;   ///< when it last reported its status
  double moved = 0;   ///< when its beats last changed, a pause of it ended, or it left
  double broken = 0;  ///< when its connection broke

  void update(const Status& reported, double now);
};

struct Limits {
  double timeout = 600;
  double silence = 5;  ///< a rank that reported nothing for so long does not answer
  double grace = 0.5;  ///< grace period of a broken connection: the job may just be ending
};

struct Diagnosis {
  bool ends_job = false;
  std::vector<int> silent;  ///< ranks that do not answer
  std::string line;         ///< for the user, without "hyperslab: " and the line's end
};

/// The seconds for which a rank may stand still: the timeout, three times as long until every rank
/// that answers has ended a step, ten times as long while it pauses, or is in a call on storage,
/// and answers.
[[nodiscard]] double longest_standstill(std::span<const Peer> peers, const Peer& of,
                                        const Limits& limits, double now);

/// The job hangs if every rank has stood still for as long as it may. Decides whether it ends, and
/// names the cause. Ranks with Link::none are not considered; ranks that left count only by the
/// time at which they did; a rank that failed explains breaks that come later.
[[nodiscard]] Diagnosis diagnose(std::span<const Peer> peers, const Limits& limits, double now);

}  // namespace hyperslab::comm
