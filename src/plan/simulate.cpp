// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/simulate.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "hyperslab/core/error.hpp"
#include "hyperslab/mesh/mesh.hpp"

namespace hyperslab::plan {
namespace {

using Group = std::string_view;

/// A collective or an exchange of one rank, between its call and its end.
struct Transfer {
  std::uint64_t ticket = 0;
  const Operation* operation = nullptr;
  double called = 0;
  std::vector<int> matches;  ///< in an exchange: each message's index between its two ranks
  std::optional<double> end = std::nullopt;
};

struct Interval {
  double begin = 0;
  double end = 0;
  double cost = 0;
};

/// The stream of one group on one rank: transfers in the order of their calls.
struct GroupStream {
  std::deque<Transfer> open;          ///< not yet ended, and the ended ones not yet waited for
  std::size_t first_without_end = 0;  ///< index into `open`
  double free = 0;                    ///< when the newest ended one ended
};

struct Rank {
  const std::vector<OperationList>* steps = nullptr;
  std::size_t step = 0;
  std::size_t next = 0;
  double clock = 0;
  double slowdown = 1;
  std::vector<double> step_ends{};
  std::map<Group, GroupStream> groups{};
  std::vector<Interval> beside{};  ///< collectives that run while computation does
  SimulatedRank result{};

  [[nodiscard]] bool is_done() const { return step == steps->size(); }
};

/// Messages between two ranks match in the order of their calls.
struct Match {
  std::optional<double> sender;    ///< when the sender's exchange can start
  std::optional<double> receiver;  ///< and the receiver's
};

class Simulation {
 public:
  Simulation(const std::vector<std::vector<OperationList>>& steps,
             const mesh::ParallelConfig& parallel, Prices& prices, std::span<const double> slowdown)
      : parallel_(parallel), prices_(prices) {
    for (const std::vector<OperationList>& of_rank : steps) {
      ranks_.push_back({.steps = &of_rank});
      if (!slowdown.empty()) ranks_.back().slowdown = slowdown[ranks_.size() - 1];
    }
  }

  SimulatedStep run();

 private:
  bool advance(int number);
  bool find_ends(int number);
  void compute(Rank& rank, const Operation& op);
  [[nodiscard]] double wait_for_room(const Rank& rank);
  void start(int number, const Operation& op);
  bool wait(int number, const Operation& op);
  [[nodiscard]] std::vector<int> members(Group group) const;
  [[nodiscard]] std::optional<double> end_of_collective(int number, Group group,
                                                        const Transfer& transfer);
  [[nodiscard]] std::optional<double> end_of_exchange(int number, Group group,
                                                      const Transfer& transfer);
  [[nodiscard]] double message_seconds(int from, int to, double bytes) const;
  void finish_step(Rank& rank);

  const mesh::ParallelConfig& parallel_;
  Prices& prices_;
  std::vector<Rank> ranks_;
  /// The time at which each member could start, for collectives with members in several pipeline
  /// ranks.
  std::map<std::pair<Group, std::uint64_t>, std::map<int, double>> arrivals_;
  std::map<std::pair<int, int>, std::vector<Match>> messages_;  ///< by sender and receiver
  std::map<std::pair<int, int>, std::pair<int, int>> calls_;    ///< sends and receives so far
};

/// Pipeline ranks whose operations of a group meet; other groups' are all of one pipeline
/// rank.
std::vector<int> Simulation::members(Group group) const {
  std::vector<int> all;
  const auto stages = static_cast<int>(ranks_.size());
  if (group == comm::name_of(comm::GroupRole::tied)) return {0, stages - 1};
  if (group != comm::name_of(comm::GroupRole::world) &&
      group != comm::name_of(comm::GroupRole::pipeline)) {
    return all;
  }
  for (int stage = 0; stage < stages; ++stage) all.push_back(stage);
  return all;
}

/// Computation slows down while collectives run beside it.
void Simulation::compute(Rank& rank, const Operation& op) {
  const double begin = rank.clock;
  double left = rank.slowdown * prices_.of_op(op);
  std::erase_if(rank.beside, [&](const Interval& interval) { return interval.end <= begin; });
  double now = begin;
  while (left > 0) {
    double speed = 1;
    double until = std::numeric_limits<double>::infinity();
    for (const Interval& interval : rank.beside) {
      if (interval.end <= now) continue;
      if (interval.begin > now) {
        until = std::min(until, interval.begin);
      } else {
        speed *= 1 - interval.cost;
        until = std::min(until, interval.end);
      }
    }
    if (speed > 0 && now + left / speed <= until) {
      now += left / speed;
      left = 0;
    } else {
      left -= speed * (until - now);
      now = until;
    }
  }
  rank.clock = now;
  rank.result.compute += now - begin;
  rank.result.compute_by_phase[static_cast<std::size_t>(op.phase)] += now - begin;
}

/// Kernels of large products take all multiprocessors until they end: one that starts at the same
/// moment as a collective, of which the stream must first see an event, goes first.
double Simulation::wait_for_room(const Rank& rank) {
  const OperationList& operations = (*rank.steps)[rank.step];
  if (rank.next + 1 >= operations.size()) return 0;
  const Operation& following = operations[rank.next + 1];
  return following.kind == Operation::Kind::compute ? rank.slowdown * prices_.of_op(following) : 0;
}

void Simulation::start(int number, const Operation& op) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  Transfer transfer{.ticket = op.ticket, .operation = &op, .called = rank.clock, .matches = {}};
  const bool on_gpu = prices_.machine().device == "cuda";
  if (on_gpu && op.group == comm::name_of(comm::GroupRole::tensor))
    transfer.called += wait_for_room(rank);
  for (const Operation::Message& message : op.messages) {
    const std::pair<int, int> ends =
        message.sends ? std::pair(number, message.peer) : std::pair(message.peer, number);
    auto& [sends, receives] = calls_[ends];
    const int match = message.sends ? sends++ : receives++;
    transfer.matches.push_back(match);
    std::vector<Match>& all = messages_[ends];
    if (all.size() <= static_cast<std::size_t>(match)) {
      all.resize(static_cast<std::size_t>(match) + 1);
    }
  }
  rank.groups[op.group].open.push_back(std::move(transfer));
}

double Simulation::message_seconds(int from, int to, double bytes) const {
  const int nodes_of = prices_.machine().ranks_per_node;
  const auto node = [&](int stage) { return mesh::first_rank_of(parallel_, stage) / nodes_of; };
  const Group group = comm::name_of(comm::GroupRole::pipeline);
  const GroupLayout layout{.ranks = 2, .nodes = node(from) == node(to) ? 1 : 2};
  return prices_.of_collective(group, "send", layout, bytes);
}

std::optional<double> Simulation::end_of_exchange(int number, Group group,
                                                  const Transfer& transfer) {
  const GroupStream& stream = ranks_[static_cast<std::size_t>(number)].groups[group];
  const double ready = std::max(transfer.called, stream.free);
  double end = ready;
  bool is_known = true;
  for (std::size_t i = 0; i < transfer.matches.size(); ++i) {
    const Operation::Message& message = transfer.operation->messages[i];
    const int from = message.sends ? number : message.peer;
    const int to = message.sends ? message.peer : number;
    Match& match = messages_[{from, to}][static_cast<std::size_t>(transfer.matches[i])];
    (message.sends ? match.sender : match.receiver) = ready;
    if (!match.sender || !match.receiver) {
      is_known = false;
      continue;
    }
    const double begin = std::max(*match.sender, *match.receiver);
    end = std::max(end, begin + message_seconds(from, to, message.bytes));
  }
  return is_known ? std::optional(end) : std::nullopt;
}

std::optional<double> Simulation::end_of_collective(int number, Group group,
                                                    const Transfer& transfer) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  double begin = std::max(transfer.called, rank.groups[group].free);
  const std::vector<int> all = members(group);
  if (!all.empty()) {
    std::map<int, double>& arrived = arrivals_[{group, transfer.ticket}];
    arrived[number] = begin;
    const std::set<int> distinct(all.begin(), all.end());
    if (arrived.size() < distinct.size()) return std::nullopt;
    for (const auto& [member, moment] : arrived) begin = std::max(begin, moment);
  }
  const GroupLayout layout = layout_of(group, parallel_, prices_.machine().ranks_per_node);
  const double bytes = transfer.operation->bytes;
  const double seconds =
      group == kHostLink ? prices_.of_transfer(bytes)
                         : prices_.of_collective(group, transfer.operation->name, layout, bytes);
  const double cost = prices_.overlap_cost(group);
  if (all.empty() && cost > 0 && seconds > 0) rank.beside.push_back({begin, begin + seconds, cost});
  rank.result.communication[std::string(group)] += seconds;
  return begin + seconds;
}

/// Finds ends of transfers that can be known by now.
bool Simulation::find_ends(int number) {
  bool changed = false;
  for (auto& [group, stream] : ranks_[static_cast<std::size_t>(number)].groups) {
    while (stream.first_without_end < stream.open.size()) {
      Transfer& transfer = stream.open[stream.first_without_end];
      transfer.end = transfer.operation->kind == Operation::Kind::exchange
                         ? end_of_exchange(number, group, transfer)
                         : end_of_collective(number, group, transfer);
      if (!transfer.end) break;
      stream.free = std::max(stream.free, *transfer.end);
      ++stream.first_without_end;
      changed = true;
    }
  }
  return changed;
}

bool Simulation::wait(int number, const Operation& op) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  GroupStream& stream = rank.groups[op.group];
  const auto found = std::ranges::find(stream.open, op.ticket, &Transfer::ticket);
  require(found != stream.open.end(), "a plan waits for what was never started");
  if (!found->end) return false;
  const double waited = std::max(0.0, *found->end - rank.clock);
  rank.clock += waited;
  rank.result.exposed[std::string(op.group)] += waited;
  stream.open.erase(found);
  --stream.first_without_end;
  return true;
}

void Simulation::finish_step(Rank& rank) {
  rank.step_ends.push_back(rank.clock);
  ++rank.step;
  rank.next = 0;
  if (!rank.is_done()) rank.result = {};
}

/// Goes on until the rank must wait for an unknown time. Returns whether it came further.
bool Simulation::advance(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  bool changed = false;
  while (!rank.is_done()) {
    const OperationList& operations = (*rank.steps)[rank.step];
    if (rank.next == operations.size()) {
      finish_step(rank);
      changed = true;
      continue;
    }
    const Operation& op = operations[rank.next];
    switch (op.kind) {
      case Operation::Kind::compute: compute(rank, op); break;
      case Operation::Kind::collective:
      case Operation::Kind::exchange:
        start(number, op);
        (void)find_ends(number);
        break;
      case Operation::Kind::wait:
        if (!wait(number, op)) return changed;
        break;
    }
    ++rank.next;
    changed = true;
  }
  return changed;
}

SimulatedStep Simulation::run() {
  const auto stages = static_cast<int>(ranks_.size());
  const auto is_done = [](const Rank& rank) { return rank.is_done(); };
  while (!std::ranges::all_of(ranks_, is_done)) {
    bool changed = false;
    for (int number = 0; number < stages; ++number) {
      changed = find_ends(number) || changed;
      changed = advance(number) || changed;
    }
    require(changed, "the planned operations wait for each other");
  }
  SimulatedStep result;
  double begin = 0;
  double end = 0;
  for (const Rank& rank : ranks_) {
    const std::size_t last = rank.step_ends.size() - 1;
    if (last > 0) begin = std::max(begin, rank.step_ends[last - 1]);
    end = std::max(end, rank.step_ends[last]);
  }
  result.seconds = end - begin;
  for (Rank& rank : ranks_) {
    rank.result.step = result.seconds;
    result.ranks.push_back(std::move(rank.result));
  }
  return result;
}

/// The seconds over which the mean power is taken: the step without collectives that computation
/// waits for, in which a GPU draws no less.
double busy_seconds(const SimulatedRank& rank) {
  double seconds = rank.step;
  for (const comm::GroupRole role :
       {comm::GroupRole::data, comm::GroupRole::shard, comm::GroupRole::replica,
        comm::GroupRole::tensor, comm::GroupRole::key_value, comm::GroupRole::context,
        comm::GroupRole::expert, comm::GroupRole::expert_data, comm::GroupRole::expert_shard}) {
    const auto waited = rank.exposed.find(std::string(comm::name_of(role)));
    if (waited != rank.exposed.end()) seconds -= waited->second;
  }
  return seconds;
}

}  // namespace

SimulatedStep simulate(const std::vector<std::vector<OperationList>>& steps,
                       const mesh::ParallelConfig& parallel, Prices& prices,
                       std::span<const double> slowdown) {
  return Simulation(steps, parallel, prices, slowdown).run();
}

SimulatedStep simulate_sustained(const std::vector<std::vector<OperationList>>& steps,
                                 const mesh::ParallelConfig& parallel, Prices& prices) {
  constexpr int kRounds = 8;
  constexpr double kEnough = 1.002;
  std::vector<double> slowdown(steps.size(), 1);
  SimulatedStep step = simulate(steps, parallel, prices);
  for (int round = 0; round < kRounds; ++round) {
    bool is_slower = false;
    for (std::size_t i = 0; i < slowdown.size(); ++i) {
      const double least = prices.sustained_seconds(steps[i].back());
      const double busy = busy_seconds(step.ranks[i]);
      if (busy <= 0 || least <= kEnough * busy) continue;
      slowdown[i] *= least / busy;
      is_slower = true;
    }
    if (!is_slower) break;
    step = simulate(steps, parallel, prices, slowdown);
  }
  return step;
}

}  // namespace hyperslab::plan
