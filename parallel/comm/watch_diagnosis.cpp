// SPDX-License-Identifier: Apache-2.0
#include "watch_diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "hyperslab/core/storage_call.hpp"

namespace hyperslab::comm {
namespace {

constexpr double kFirstStepFactor = 3;
constexpr double kPauseFactor = 10;
constexpr std::size_t kMostListed = 4;  // ranks and calls in the line

using Ranks = std::vector<int>;

std::string call_text(const CallState& state, Call kind, std::uint64_t number) {
  return fmt::format("{} {} {}", name_of(state.group), name_of(kind), number);
}

const CallState* awaited(const Status& status) {
  const auto calls = status.group_calls();
  const auto found = std::ranges::find_if(calls, &CallState::waits);
  return found == calls.end() ? nullptr : &*found;
}

/// "in step 41, backward of microbatch 3, newest calls data all_reduce 96, world all_reduce 40"
std::string whereabouts(const Status& status) {
  std::string text =
      status.step == 0 ? "before the first step" : fmt::format("in step {}", status.step);
  const bool passes = status.phase == Phase::forward || status.phase == Phase::backward;
  if (status.phase != Phase::other) text += fmt::format(", {}", hyperslab::name_of(status.phase));
  if (passes && status.microbatch >= 0) text += fmt::format(" of microbatch {}", status.microbatch);
  if (status.task[0] != 0) text += fmt::format(", {}", status.task.data());
  if (status.awaited_step > 0) {
    text += fmt::format(", waiting for the device to end step {}", status.awaited_step);
  }
  if (const CallState* call = awaited(status)) {
    text += ", waiting in " + call_text(*call, call->awaited_kind, call->awaited);
  }
  std::string calls;
  for (const CallState& call : status.group_calls()) {
    if (call.called == 0) continue;
    calls += (calls.empty() ? "" : ", ") + call_text(call, call.last, call.called);
  }
  return calls.empty() ? text : text + ", newest calls " + calls;
}

/// "rank 3", "ranks 0-2, 5"
std::string list_of(const Ranks& ranks) {
  constexpr std::size_t kMostRanges = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (ranges++ == kMostRanges) return text + ", ...";
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += fmt::format("-{}", ranks[end - 1]);
    i = end;
  }
  return text;
}

bool takes_part(const Peer& peer) {
  return peer.link == Link::connected || peer.link == Link::broken;
}

/// Ranks by their activity.
struct Findings {
  Ranks broken;
  Ranks silent;
  Ranks working;
  std::map<std::string, Ranks> waiting;  ///< by the call that they wait for
  Ranks all;                             ///< ranks that take part
};

Findings sort_ranks(std::span<const Peer> peers, const Limits& limits, double now) {
  Findings found;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const Peer& peer = peers[i];
    const int rank = static_cast<int>(i);
    if (!takes_part(peer)) continue;
    found.all.push_back(rank);
    const CallState* call = awaited(peer.status);
    if (peer.link == Link::broken) {
      found.broken.push_back(rank);
    } else if (now - peer.heard > limits.silence) {
      found.silent.push_back(rank);
    } else if (peer.status.stores) {
      found.working.push_back(rank);
    } else if (call != nullptr) {
      found.waiting["in " + call_text(*call, call->awaited_kind, call->awaited)].push_back(rank);
    } else if (peer.status.awaited_step > 0) {
      const std::string what =
          fmt::format("for the device to end step {}", peer.status.awaited_step);
      found.waiting[what].push_back(rank);
    } else if (peer.status.awaits_save && !peer.status.pauses) {
      found.waiting["for the checkpoint that is written beside training"].push_back(rank);
    } else {
      found.working.push_back(rank);
    }
  }
  return found;
}

/// Ranks whose devices have not ended a step that others have.
Ranks with_late_devices(std::span<const Peer> peers, const Ranks& ranks) {
  const auto awaits = [&](int rank) {
    return peers[static_cast<std::size_t>(rank)].status.awaited_step;
  };
  std::int64_t newest = 0;
  for (const int rank : ranks) newest = std::max(newest, awaits(rank));
  Ranks found;
  std::ranges::copy_if(ranks, std::back_inserter(found),
                       [&](int rank) { return awaits(rank) > 0 && awaits(rank) < newest; });
  return found;
}

/// Members of groups that made fewer calls there than another member waits for.
Ranks with_missing_calls(std::span<const Peer> peers, const Ranks& ranks) {
  std::map<std::pair<GroupRole, int>, std::uint64_t> awaited_calls;
  for (const int rank : ranks) {
    const CallState* call = awaited(peers[static_cast<std::size_t>(rank)].status);
    if (call == nullptr) continue;
    std::uint64_t& most = awaited_calls[{call->group, call->leader}];
    most = std::max(most, call->awaited);
  }
  Ranks found;
  for (const int rank : ranks) {
    const auto calls = peers[static_cast<std::size_t>(rank)].status.group_calls();
    const bool misses = std::ranges::any_of(calls, [&](const CallState& call) {
      const auto most = awaited_calls.find({call.group, call.leader});
      return most != awaited_calls.end() && call.called < most->second;
    });
    if (misses) found.push_back(rank);
  }
  return found;
}

/// The first few with all that is known, the rest by number.
std::string listed(std::span<const Peer> peers, const Ranks& ranks, std::string_view what) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostListed); ++i) {
    const Peer& peer = peers[static_cast<std::size_t>(ranks[i])];
    text +=
        fmt::format("{}{} {} {}", i == 0 ? "" : "; ", peer.name, what, whereabouts(peer.status));
  }
  if (ranks.size() > kMostListed) {
    text += fmt::format("; as {}", list_of({ranks.begin() + kMostListed, ranks.end()}));
  }
  return text;
}

std::string waits_of(const Findings& found) {
  std::string text;
  std::size_t count = 0;
  for (const auto& [what, ranks] : found.waiting) {
    if (count++ == kMostListed) return text + "; ...";
    text += fmt::format("; {} {} {}", list_of(ranks), ranks.size() == 1 ? "waits" : "wait", what);
  }
  return text;
}

std::string failures_of(std::span<const Peer> peers) {
  Ranks failed;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].link == Link::failed) failed.push_back(static_cast<int>(i));
  }
  return failed.empty() ? "" : fmt::format("; {} left after an error", list_of(failed));
}

constexpr std::string_view kIsGone = "is gone (killed, or crashed), last heard of";
constexpr std::string_view kIsSilent =
    "does not answer (stopped, or its machine is down), last heard of";

std::string causes_of(std::span<const Peer> peers, const Findings& found) {
  if (!found.broken.empty()) return listed(peers, found.broken, kIsGone);
  if (!found.silent.empty()) {
    return listed(peers, found.silent, kIsSilent);
  }
  if (!found.working.empty()) return listed(peers, found.working, "is stuck");
  const Ranks late = with_missing_calls(peers, found.all);
  if (!late.empty()) return listed(peers, late, "has not made the call that others wait in, it is");
  const Ranks slow = with_late_devices(peers, found.all);
  if (!slow.empty()) return listed(peers, slow, "has a device that is behind, it is");
  return listed(peers, found.all, "is");
}

bool answers(const Peer& peer, const Limits& limits, double now) {
  return peer.link == Link::connected && now - peer.heard <= limits.silence;
}

/// If no rank has moved for as long as it may: how long none did at least.
std::optional<double> standstill(std::span<const Peer> peers, const Limits& limits, double now) {
  if (std::ranges::none_of(peers, takes_part)) return {};
  double least = std::numeric_limits<double>::infinity();
  for (const Peer& peer : peers) {
    if (peer.link == Link::none) continue;
    const double longest = longest_standstill(peers, peer, limits, now);
    if (now - peer.moved < longest) return {};
    least = std::min(least, longest);
  }
  return least;
}

bool is_broken(std::span<const Peer> peers, const Limits& limits, double now) {
  const auto is_explained = [&](double when) {
    return std::ranges::any_of(
        peers, [&](const Peer& peer) { return peer.link == Link::failed && peer.moved <= when; });
  };
  return std::ranges::any_of(peers, [&](const Peer& peer) {
    return peer.link == Link::broken && now - peer.broken >= limits.grace &&
           !is_explained(peer.broken);
  });
}

}  // namespace

Status Status::of(FlightRecorders& recorders) {
  const Activity& activity = recorders.activity();
  Status status;
  status.beats = activity.beats.load(std::memory_order_relaxed) + slow_storage_calls();
  status.step = activity.step.load(std::memory_order_relaxed);
  status.ended_step = activity.ended_step.load(std::memory_order_relaxed);
  status.awaited_step = activity.awaited_step.load(std::memory_order_relaxed);
  status.microbatch = activity.microbatch.load(std::memory_order_relaxed);
  status.phase = activity.phase.load(std::memory_order_relaxed);
  const bool in_pause = activity.pauses.load(std::memory_order_relaxed) > 0;
  std::string task = oldest_storage_call();
  status.stores = !task.empty();
  status.pauses = in_pause || status.stores;
  status.awaits_save = waits_for_storage();
  const char* const pause = activity.pause.load(std::memory_order_relaxed);
  if (task.empty() && in_pause && pause != nullptr) task = pause;
  std::memcpy(status.task.data(), task.data(), std::min(task.size(), kMostOfTask - 1));
  status.groups = static_cast<std::uint8_t>(recorders.snapshot(status.calls));
  return status;
}

void Peer::update(const Status& reported, double now) {
  if (reported.beats != status.beats || (status.pauses && !reported.pauses)) moved = now;
  heard = now;
  status = reported;
}

double longest_standstill(std::span<const Peer> peers, const Peer& of, const Limits& limits,
                          double now) {
  if (of.status.pauses && answers(of, limits, now)) return kPauseFactor * limits.timeout;
  // The last report of a rank that fell silent says nothing of the others' steps.
  const bool some_ended = std::ranges::any_of(
      peers, [](const Peer& peer) { return takes_part(peer) && peer.status.ended_step > 0; });
  const bool first = std::ranges::any_of(peers, [&](const Peer& peer) {
    const bool counts = takes_part(peer) && (!some_ended || answers(peer, limits, now));
    return counts && peer.status.ended_step == 0;
  });
  return limits.timeout * (first ? kFirstStepFactor : 1);
}

Diagnosis diagnose(std::span<const Peer> peers, const Limits& limits, double now) {
  Diagnosis diagnosis;
  const bool broken = is_broken(peers, limits, now);
  const std::optional<double> still = standstill(peers, limits, now);
  diagnosis.ends_job = broken || still.has_value();
  if (!diagnosis.ends_job) return diagnosis;
  const Findings found = sort_ranks(peers, limits, now);
  if (broken) {
    diagnosis.line = listed(peers, found.broken, kIsGone) + waits_of(found) +
                     "; the job ends, see that rank's log and its machine's";
    return diagnosis;
  }
  diagnosis.silent = found.silent;
  diagnosis.line = fmt::format(
      "no rank got anything done for {:g} s: {}{}{}; the job ends (longer pauses: "
      "run.hang_timeout_seconds, now {:g})",
      *still, causes_of(peers, found), waits_of(found), failures_of(peers), limits.timeout);
  return diagnosis;
}

}  // namespace hyperslab::comm
