// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/memory_timeline.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "hyperslab/core/transfer.hpp"

namespace hyperslab::train {
namespace {

constexpr std::string_view kBlocks = "blocks.";

bool is_forward(UnitPass pass) { return pass == UnitPass::forward || pass == UnitPass::evaluate; }

/// The layer that a label names, "blocks.3.mlp.pre"; -1: none.
int layer_of(std::string_view label) {
  if (!label.starts_with(kBlocks)) return -1;
  int layer = -1;
  std::from_chars(label.data() + kBlocks.size(), label.data() + label.size(), layer);
  return layer;
}

/// Bytes of an allocation to the begin of the next one: its part of the arena.
std::int64_t bytes_of(const Arena& arena, std::size_t index) {
  const auto& all = arena.allocations();
  const std::size_t end = index + 1 < all.size() ? all[index + 1].offset_bytes : arena.used_bytes();
  return static_cast<std::int64_t>(end - all[index].offset_bytes);
}

/// The lives of a slot's allocations, from marks in their order.
class SlotLives {
 public:
  SlotLives(const model::Stage::SlotAllocations& allocations, const Arena& arena, int number)
      : allocations_(allocations),
        arena_(arena),
        number_(number),
        began_(allocations.units.size(), kUnused) {}
  /// Marks a unit's activations as in use from now on.
  void open(int unit, double seconds) {
    for (std::size_t i = 0; i < began_.size(); ++i) {
      if (allocations_.units[i] == unit && began_[i] == kUnused) began_[i] = seconds;
    }
  }
  void close(int unit, double seconds, std::vector<io::AllocationLife>& lives) {
    for (std::size_t i = 0; i < began_.size(); ++i) {
      if (allocations_.units[i] == unit) end(i, seconds, lives);
    }
  }
  void close_all(double seconds, std::vector<io::AllocationLife>& lives) {
    for (std::size_t i = 0; i < began_.size(); ++i) end(i, seconds, lives);
  }

 private:
  static constexpr double kUnused = -1;
  void end(std::size_t i, double seconds, std::vector<io::AllocationLife>& lives) {
    if (began_[i] == kUnused) return;
    const std::size_t index = allocations_.first + i;
    const std::string& label = arena_.allocations()[index].label;
    lives.push_back({.category = "activations",
                     .label = label,
                     .layer = layer_of(label),
                     .slot = number_,
                     .bytes = bytes_of(arena_, index),
                     .start_seconds = began_[i],
                     .end_seconds = seconds});
    began_[i] = kUnused;
  }

  const model::Stage::SlotAllocations& allocations_;
  const Arena& arena_;
  int number_;  ///< number among all slots of the rank
  std::vector<double> began_;
};

/// A life of every allocation of an arena.
void add_all(const Arena& arena, const std::string& category, double start, double end,
             std::vector<io::AllocationLife>& lives) {
  for (std::size_t i = 0; i < arena.allocations().size(); ++i) {
    const std::string& label = arena.allocations()[i].label;
    lives.push_back({.category = category,
                     .label = label,
                     .layer = layer_of(label),
                     .slot = -1,
                     .bytes = bytes_of(arena, i),
                     .start_seconds = start,
                     .end_seconds = end});
  }
}

}  // namespace

void MemoryTimeline::begin_step(bool records, bool waits) {
  records_ = records;
  waits_ = waits;
  if (!records) return;  // lives of the newest recorded step stay
  marks_.clear();
  lost_ = 0;
}

void MemoryTimeline::mark(Context& ctx, Mark mark) {
  if (!records_) return;
  if (waits_) synchronize(ctx);
  mark.seconds = now_seconds();
  if (marks_.size() == marks_.capacity()) {
    ++lost_;
  } else {
    marks_.push_back(mark);
  }
}

void MemoryTimeline::begin_unit(Context& ctx, model::SlotId slot, int unit, UnitPass pass) {
  mark(ctx, {Kind::begin_unit, pass, slot, unit, 0});
}

void MemoryTimeline::end_unit(Context& ctx, model::SlotId slot, int unit, UnitPass pass) {
  mark(ctx, {Kind::end_unit, pass, slot, unit, 0});
}

void MemoryTimeline::begin_update(Context& ctx) { mark(ctx, {Kind::begin_update, {}, {}, 0, 0}); }

void MemoryTimeline::end_step(Context& ctx) {
  mark(ctx, {Kind::end_step, {}, {}, 0, 0});
  records_ = false;
}

/// When the first pass begins that writes gradients.
double MemoryTimeline::first_gradient(const model::Stage& stage) const {
  const auto writes = [&](const Mark& mark) {
    if (mark.kind != Kind::begin_unit) return false;
    if (mark.pass == UnitPass::forward) return stage.forward_writes_gradients(mark.unit);
    return !is_forward(mark.pass);
  };
  const auto found = std::ranges::find_if(marks_, writes);
  return found == marks_.end() ? -1 : found->seconds;
}

void MemoryTimeline::add_activations(const model::Stage& stage, const Arena& arena,
                                     std::vector<io::AllocationLife>& lives) const {
  std::map<std::pair<int, int>, SlotLives> slots;
  for (const Mark& mark : marks_) {
    if (mark.kind != Kind::begin_unit && mark.kind != Kind::end_unit) continue;
    const auto [chunk, number] = mark.slot;
    const auto [found, is_new] = slots.try_emplace({chunk, number}, stage.allocations(mark.slot),
                                                   arena, static_cast<int>(slots.size()));
    SlotLives& slot = found->second;
    const auto [first, last] = stage.units(chunk);
    const bool begins = mark.kind == Kind::begin_unit;
    if (begins && is_forward(mark.pass)) {
      slot.open(model::Stage::kWholeSlot, mark.seconds);
      slot.open(mark.unit, mark.seconds);
    }
    if (begins || mark.pass == UnitPass::backward_input) continue;
    const bool ends_evaluation = mark.pass == UnitPass::evaluate && mark.unit + 1 == last;
    if (!is_forward(mark.pass)) slot.close(mark.unit, mark.seconds, lives);
    if (ends_evaluation || (!is_forward(mark.pass) && mark.unit == first)) {
      slot.close_all(mark.seconds, lives);
    }
  }
  for (auto& [id, slot] : slots) slot.close_all(marks_.back().seconds, lives);
}

std::vector<io::AllocationLife> MemoryTimeline::lives(const model::Stage& stage,
                                                      const model::Arenas& arenas,
                                                      std::size_t workspace_bytes,
                                                      double step_start) const {
  std::vector<io::AllocationLife> lives;
  if (marks_.empty()) return lives;
  const double end = marks_.back().seconds;
  add_all(arenas.parameters, "parameters", step_start, end, lives);
  add_all(arenas.optimizer, "optimizer", step_start, end, lives);
  add_all(arenas.scratch, "workspace", step_start, end, lives);
  if (workspace_bytes > 0) {
    lives.push_back({"workspace", "largest op's workspace", -1, -1,
                     static_cast<std::int64_t>(workspace_bytes), step_start, end});
  }
  const double gradients = first_gradient(stage);
  if (gradients >= 0) add_all(arenas.gradients, "gradients", gradients, end, lives);

  add_activations(stage, arenas.activations, lives);
  for (io::AllocationLife& life : lives) {
    life.start_seconds -= step_start;
    life.end_seconds -= step_start;
  }
  return lives;
}

std::vector<MemoryTimeline::Span> MemoryTimeline::spans(double step_start) const {
  std::vector<Span> spans;
  const auto add = [&](const char* name, double start, double end) {
    if (!spans.empty() && spans.back().name == name) {
      spans.back().end_seconds = end - step_start;
    } else {
      spans.push_back({name, start - step_start, end - step_start});
    }
  };
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    const Mark& mark = marks_[i];
    if (i + 1 == marks_.size()) break;
    const double end = marks_[i + 1].seconds;
    if (mark.kind == Kind::begin_unit) {
      add(is_forward(mark.pass) ? "forward" : "backward", mark.seconds, end);
    } else if (mark.kind == Kind::begin_update) {
      add("optimizer", mark.seconds, end);
    }
  }
  return spans;
}

}  // namespace hyperslab::train
