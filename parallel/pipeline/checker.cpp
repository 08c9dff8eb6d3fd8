// SPDX-License-Identifier: Apache-2.0
#include "checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "index.hpp"

namespace hyperslab::pipeline {
namespace {

std::string_view name_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return "forward";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "backward_input";
    case ActionKind::backward_weight: return "backward_weight";
    case ActionKind::exchange: return "exchange";
  }
  return "?";
}

std::string_view name_of(Payload payload) {
  return payload == Payload::activation ? "activation" : "gradient";
}

bool in_range(int value, int end) { return value >= 0 && value < end; }

/// Walks through the program of one rank.
class RankChecker {
 public:
  RankChecker(const Program& program, int rank, std::vector<std::string>& found)
      : program_(program), rank_(rank), found_(found), slots_(at(program.virtual_stages)) {
    for (int chunk = 0; chunk < program.virtual_stages; ++chunk) {
      slots_[at(chunk)].resize(at(std::max(program.slot_count(rank, chunk), 0)));
    }
    passes_.resize(at(program.virtual_stages) * at(program.microbatches));
  }

  void check() {
    const std::vector<Action>& actions = program_.ranks[at(rank_)];
    for (action_ = 0; action_ < static_cast<int>(actions.size()); ++action_) {
      const Action& action = actions[at(action_)];
      if (action.kind == ActionKind::exchange)
        check_exchange(action);
      else if (is_known(action.chunk, action.microbatch, action.slot))
        check_pass(action);
    }
    check_counts();
  }

 private:
  struct Slot {
    int owner = kNone;  ///< microbatch
    bool received = false;
    bool forwarded = false;
    bool gradient_received = false;
    bool gradient_made = false;
    int output = kNone;          ///< microbatch whose output it holds
    int input_gradient = kNone;  ///< microbatch whose input gradient it holds
  };
  struct Count {
    int forward = 0;
    int backward = 0;
    int input = 0;
    int weight = 0;
  };

  void complain(const std::string& text) {
    found_.push_back(fmt::format("rank {} action {}: {}", rank_, action_, text));
  }

  bool is_known(int chunk, int microbatch, int slot) {
    if (in_range(chunk, program_.virtual_stages) && in_range(microbatch, program_.microbatches) &&
        in_range(slot, static_cast<int>(slots_[at(chunk)].size()))) {
      return true;
    }
    complain(fmt::format("chunk {}, microbatch {}, slot {} do not exist in this program", chunk,
                         microbatch, slot));
    return false;
  }

  /// Sends are checked before the receives of the same exchange change anything.
  void check_exchange(const Action& action) {
    if (action.transfers.empty()) complain("an exchange of nothing");
    for (const bool sends : {true, false}) {
      for (const Transfer& t : action.transfers) {
        if (t.sends != sends || !is_known(t.chunk, t.microbatch, t.slot)) continue;
        if (!is_neighbour(t)) {
          complain(fmt::format("rank {} is not the other end of this {} of chunk {}", t.peer,
                               name_of(t.payload), t.chunk));
        }
        sends ? check_send(t) : check_receive(t);
      }
    }
  }

  [[nodiscard]] bool is_neighbour(const Transfer& t) const {
    const bool up = t.sends == (t.payload == Payload::activation);
    const int other = program_.global_stage(rank_, t.chunk) + (up ? 1 : -1);
    return in_range(other, program_.global_stages()) && other % program_.stages == t.peer &&
           t.peer != rank_;
  }

  void check_send(const Transfer& t) {
    const Slot& slot = slots_[at(t.chunk)][at(t.slot)];
    const int held = t.payload == Payload::activation ? slot.output : slot.input_gradient;
    if (held == t.microbatch) return;
    complain(fmt::format("sends the {} of microbatch {}, chunk {}, which slot {} does not hold",
                         name_of(t.payload), t.microbatch, t.chunk, t.slot));
  }

  void check_receive(const Transfer& t) {
    Slot& slot = slots_[at(t.chunk)][at(t.slot)];
    if (t.payload == Payload::activation) {
      take(slot, t.chunk, t.slot, t.microbatch);
      slot.received = true;
    } else if (slot.owner != t.microbatch || !slot.forwarded || slot.gradient_received) {
      complain(
          fmt::format("receives the gradient of microbatch {}, chunk {}, which does not wait "
                      "for it in slot {}",
                      t.microbatch, t.chunk, t.slot));
    } else {
      slot.gradient_received = true;
    }
  }

  void take(Slot& slot, int chunk, int index, int microbatch) {
    if (slot.owner != kNone) {
      complain(fmt::format("slot {} of chunk {} is taken for microbatch {} while it holds {}",
                           index, chunk, microbatch, slot.owner));
    }
    const int output = slot.output;
    const int gradient = slot.input_gradient;
    slot = {};
    slot.owner = microbatch;
    slot.output = output;
    slot.input_gradient = gradient;
  }

  void check_pass(const Action& action) {
    Slot& slot = slots_[at(action.chunk)][at(action.slot)];
    const bool first = program_.is_first(rank_, action.chunk);
    const bool last = program_.is_last(rank_, action.chunk);
    const int m = action.microbatch;
    if (action.kind == ActionKind::forward && first) take(slot, action.chunk, action.slot, m);
    bool ready = slot.owner == m;
    Count& count = passes_[at(action.chunk) * at(program_.microbatches) + at(m)];
    bool release = true;
    if (action.kind == ActionKind::forward) {
      ready = ready && (first || slot.received) && !slot.forwarded;
      slot.forwarded = true;
      slot.output = m;
      slot.input_gradient = kNone;
      ++count.forward;
      release = program_.schedule == Schedule::forward_only;
    } else if (action.kind == ActionKind::backward_weight) {
      ready = ready && slot.gradient_made;
      ++count.weight;
    } else {
      ready = ready && slot.forwarded && (last || slot.gradient_received) && !slot.gradient_made;
      slot.gradient_made = true;
      slot.input_gradient = m;
      release = action.kind == ActionKind::backward;
      ++(release ? count.backward : count.input);
    }
    if (release) slot.owner = kNone;
    if (!ready) {
      complain(fmt::format("{} of microbatch {}, chunk {} does not find what it needs in slot {}",
                           name_of(action.kind), m, action.chunk, action.slot));
    }
  }

  void check_counts() {
    const bool trains = program_.schedule != Schedule::forward_only;
    for (int chunk = 0; chunk < program_.virtual_stages; ++chunk) {
      for (int m = 0; m < program_.microbatches; ++m) {
        const Count& c = passes_[at(chunk) * at(program_.microbatches) + at(m)];
        const bool whole = c.backward == 1 && c.input == 0 && c.weight == 0;
        const bool parts = c.backward == 0 && c.input == 1 && c.weight == 1;
        const bool none = c.backward == 0 && c.input == 0 && c.weight == 0;
        if (c.forward == 1 && (trains ? whole || parts : none)) continue;
        found_.push_back(fmt::format(
            "rank {}: microbatch {} goes {} times forward and {} times backward through chunk {} "
            "(in parts: {} and {})",
            rank_, m, c.forward, c.backward, chunk, c.input, c.weight));
      }
    }
  }

  const Program& program_;
  int rank_;
  std::vector<std::string>& found_;
  std::vector<std::vector<Slot>> slots_;
  std::vector<Count> passes_;
  int action_ = 0;
};

/// The identity of a message, alike for both of its ends: payload, sending global stage,
/// microbatch.
using Identity = std::tuple<Payload, int, int>;

Identity identity(const Program& program, int rank, const Transfer& t) {
  const int here = program.global_stage(rank, t.chunk);
  const int back = t.payload == Payload::activation ? -1 : 1;
  return {t.payload, t.sends ? here : here + back, t.microbatch};
}

std::string describe(const std::vector<Identity>& messages, std::size_t index) {
  if (index >= messages.size()) return "nothing";
  const auto& [payload, stage, microbatch] = messages[index];
  return fmt::format("the {} of microbatch {} from stage {}", name_of(payload), microbatch, stage);
}

void check_pairs(const Program& program, std::vector<std::string>& found) {
  std::map<std::pair<int, int>, std::pair<std::vector<Identity>, std::vector<Identity>>> pairs;
  for (int rank = 0; rank < program.stages; ++rank) {
    for (const Action& action : program.ranks[at(rank)]) {
      for (const Transfer& t : action.transfers) {
        auto& ends = pairs[t.sends ? std::pair(rank, t.peer) : std::pair(t.peer, rank)];
        (t.sends ? ends.first : ends.second).push_back(identity(program, rank, t));
      }
    }
  }
  for (const auto& [pair, ends] : pairs) {
    const auto& [sends, receives] = ends;
    const auto [s, r] = std::ranges::mismatch(sends, receives);
    if (s == sends.end() && r == receives.end()) continue;
    const auto index = static_cast<std::size_t>(s - sends.begin());
    found.push_back(fmt::format("message {} from rank {} to rank {}: {} is sent, {} is received",
                                index, pair.first, pair.second, describe(sends, index),
                                describe(receives, index)));
  }
}

bool has_shape(const Program& program) {
  const auto chunks = [&](const std::vector<int>& slots) {
    return static_cast<int>(slots.size()) == program.virtual_stages;
  };
  return program.stages >= 1 && program.virtual_stages >= 1 && program.microbatches >= 1 &&
         static_cast<int>(program.ranks.size()) == program.stages &&
         static_cast<int>(program.slots.size()) == program.stages &&
         std::ranges::all_of(program.slots, chunks);
}

}  // namespace

std::vector<std::string> check_structure(const Program& program) {
  if (!has_shape(program)) return {"its ranks and slots are not those of its stages"};
  std::vector<std::string> found;
  for (int rank = 0; rank < program.stages; ++rank) RankChecker(program, rank, found).check();
  if (found.empty()) check_pairs(program, found);
  return found;
}

}  // namespace hyperslab::pipeline
