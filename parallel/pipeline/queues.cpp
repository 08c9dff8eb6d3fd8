// SPDX-License-Identifier: Apache-2.0
#include "queues.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "index.hpp"

namespace hyperslab::pipeline {
namespace {

/// An action of a rank.
struct ActionIndex {
  int rank = 0;
  int action = 0;
};

/// The exchanges of the newest transfers of a slot.
struct Slot {
  int input = kNone;
  int output = kNone;
  int output_gradient = kNone;
  int input_gradient = kNone;
};

class Queues {
 public:
  Queues(const Program& program, const Costs& costs) : program_(program), costs_(costs) {
    for (int rank = 0; rank < program.stages; ++rank) {
      const std::size_t actions = program.ranks[at(rank)].size();
      Rank& state = ranks_.emplace_back();
      state.nodes.resize(actions);
      find_waits(rank);
    }
    match();
  }

  QueueRun run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < program_.stages; ++rank) {
        moved = issue(rank) || moved;
        moved = start(rank) || moved;
        moved = complete(rank) || moved;
      }
    }
    QueueRun result;
    for (const Rank& rank : ranks_) {
      std::vector<Interval>& actions = result.actions.emplace_back();
      for (const Node& node : rank.nodes) actions.push_back({node.begin, node.end});
    }
    result.stuck = stuck();
    return result;
  }

 private:
  struct Node {
    std::vector<int> waits;            ///< computation: exchanges of this rank
    std::vector<ActionIndex> matches;  ///< exchange: its peers' actions
    bool unmatched = false;
    bool issued = false;
    bool started = false;
    bool done = false;
    double begin = 0;
    double end = 0;
  };
  struct Rank {
    std::vector<Node> nodes;
    std::vector<int> queue;    ///< exchanges in order
    std::size_t next = 0;      ///< to be issued
    std::size_t running = 0;   ///< in queue: first that is not complete
    std::size_t starting = 0;  ///< in queue: first that has not started
    double clock = 0;          ///< end of the computations so far
  };

  Node& node(const ActionIndex& index) { return ranks_[at(index.rank)].nodes[at(index.action)]; }

  void find_waits(int rank) {
    std::map<std::pair<int, int>, Slot> slots;
    const std::vector<Action>& actions = program_.ranks[at(rank)];
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      const Action& action = actions[at(i)];
      if (action.kind == ActionKind::exchange) {
        ranks_[at(rank)].queue.push_back(i);
        for (const Transfer& t : action.transfers) {
          Slot& slot = slots[{t.chunk, t.slot}];
          const bool activation = t.payload == Payload::activation;
          int& forward = t.sends ? slot.output : slot.input;
          int& backward = t.sends ? slot.input_gradient : slot.output_gradient;
          (activation ? forward : backward) = i;
        }
        continue;
      }
      Slot& slot = slots[{action.chunk, action.slot}];
      std::vector<int>& waits = ranks_[at(rank)].nodes[at(i)].waits;
      const auto wait = [&](int& exchange) {
        if (exchange != kNone) waits.push_back(std::exchange(exchange, kNone));
      };
      if (action.kind == ActionKind::forward) {
        wait(slot.input);
        wait(slot.output);
        wait(slot.input_gradient);
      } else if (action.kind != ActionKind::backward_weight) {
        wait(slot.output_gradient);
      }
    }
  }

  /// Sends and receives of a pair match in their order.
  void match() {
    std::map<std::pair<int, int>, std::pair<std::vector<ActionIndex>, std::vector<ActionIndex>>>
        pairs;
    for (int rank = 0; rank < program_.stages; ++rank) {
      for (const int i : ranks_[at(rank)].queue) {
        for (const Transfer& t : program_.ranks[at(rank)][at(i)].transfers) {
          if (t.sends)
            pairs[{rank, t.peer}].first.push_back({rank, i});
          else
            pairs[{t.peer, rank}].second.push_back({rank, i});
        }
      }
    }
    for (auto& [pair, ends] : pairs) {
      auto& [sends, receives] = ends;
      for (std::size_t k = 0; k < std::max(sends.size(), receives.size()); ++k) {
        if (k >= sends.size()) {
          node(receives[k]).unmatched = true;
        } else if (k >= receives.size()) {
          node(sends[k]).unmatched = true;
        } else {
          node(sends[k]).matches.push_back(receives[k]);
          node(receives[k]).matches.push_back(sends[k]);
        }
      }
    }
  }

  bool issue(int rank) {
    Rank& state = ranks_[at(rank)];
    const std::size_t before = state.next;
    for (; state.next < state.nodes.size(); ++state.next) {
      Node& node = state.nodes[state.next];
      const Action& action = program_.ranks[at(rank)][state.next];
      double begin = state.clock;
      if (action.kind == ActionKind::exchange) {
        node.issued = true;
        node.begin = begin;
        continue;
      }
      const auto done = [&](int exchange) { return state.nodes[at(exchange)].done; };
      if (!std::ranges::all_of(node.waits, done)) break;
      for (const int exchange : node.waits) {
        begin = std::max(begin, state.nodes[at(exchange)].end);
      }
      node.begin = begin;
      node.end = state.clock = begin + costs_.of(action.kind);
      node.done = true;
    }
    return state.next > before;
  }

  /// The head of the queue starts when it is issued and the one before it is complete.
  bool start(int rank) {
    Rank& state = ranks_[at(rank)];
    if (state.starting > state.running || state.starting == state.queue.size()) return false;
    Node& node = state.nodes[at(state.queue[state.starting])];
    if (!node.issued) return false;
    if (state.starting > 0) {
      node.begin = std::max(node.begin, state.nodes[at(state.queue[state.starting - 1])].end);
    }
    node.started = true;
    ++state.starting;
    return true;
  }

  bool complete(int rank) {
    Rank& state = ranks_[at(rank)];
    if (state.starting == state.running) return false;
    Node& head = state.nodes[at(state.queue[state.running])];
    const auto started = [&](const ActionIndex& peer) { return node(peer).started; };
    if (head.unmatched || !std::ranges::all_of(head.matches, started)) return false;
    double begin = head.begin;
    for (const ActionIndex& peer : head.matches) begin = std::max(begin, node(peer).begin);
    head.end = begin + costs_.transfer;
    head.done = true;
    ++state.running;
    return true;
  }

  [[nodiscard]] std::string stuck() const {
    std::string text;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Rank& state = ranks_[rank];
      const bool waits = state.running < state.queue.size();
      if (state.next == state.nodes.size() && !waits) continue;
      text += fmt::format("{}rank {} computes up to action {} of {} and exchanges up to action {}",
                          text.empty() ? "deadlock: " : ", ", rank, state.next, state.nodes.size(),
                          waits ? state.queue[state.running] : static_cast<int>(state.next));
    }
    return text;
  }

  const Program& program_;
  const Costs& costs_;
  std::vector<Rank> ranks_;
};

}  // namespace

QueueRun run_queues(const Program& program, const Costs& costs) {
  return Queues(program, costs).run();
}

}  // namespace hyperslab::pipeline
