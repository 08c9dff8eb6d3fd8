// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/sharding/present_buckets.hpp"

#include <algorithm>
#include <utility>

#include "value_gather.hpp"

namespace hyperslab::sharding {

PresentBuckets::PresentBuckets() = default;
PresentBuckets::~PresentBuckets() = default;

void PresentBuckets::add(Bucket bucket) { buckets_.push_back(std::move(bucket)); }

void PresentBuckets::connect(const mesh::Mesh& mesh) {
  for (Bucket& bucket : buckets_) {
    if (bucket.gather) bucket.gather->connect(mesh);
  }
}

void PresentBuckets::changed(Context& ctx, std::size_t index) {
  Bucket& mine = buckets_[index];
  mine.present = false;
  if (!mine.gather) return;
  if (mine.shares) mine.gather->wait(ctx);  // for what was there before
  mine.gather->updated(ctx);
  if (!mine.shares) mine.gather->start(ctx);
}

void PresentBuckets::all_changed(Context& ctx) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) changed(ctx, i);
}

void PresentBuckets::update_ends(std::size_t index, Event end) {
  buckets_[index].update = std::move(end);
}

void PresentBuckets::make_present(Context& ctx, Bucket& mine) {
  ctx.stream().wait(std::exchange(mine.update, {}));
  if (!mine.shares || mine.present) return;
  for (Bucket& other : buckets_) {
    if (!other.present || other.room != mine.room) continue;
    other.gather->wait(ctx);  // its gather may be in progress
    other.present = false;
  }
  mine.gather->start(ctx);
  mine.present = true;
}

void PresentBuckets::before(Context& ctx, int unit) {
  for (Bucket& bucket : buckets_) {
    if (!bucket.has(unit)) continue;
    make_present(ctx, bucket);
    if (bucket.gather) bucket.gather->wait(ctx);
  }
}

void PresentBuckets::before(Context& ctx, int unit, Order order) {
  before(ctx, unit);
  for (const bool of_experts : {false, true}) {
    const auto next = next_shared(unit, order, of_experts);
    if (next) make_present(ctx, buckets_[*next]);
  }
}

std::optional<std::size_t> PresentBuckets::next_shared(int unit, Order order,
                                                       bool of_experts) const {
  const bool ascends = order == Order::ascending;
  for (std::size_t step = 0; step < buckets_.size(); ++step) {
    const std::size_t i = ascends ? step : buckets_.size() - 1 - step;
    const Bucket& bucket = buckets_[i];
    if (!bucket.shares || bucket.of_experts != of_experts) continue;
    if (ascends ? bucket.first_unit > unit : bucket.last_unit < unit) return i;
  }
  return std::nullopt;
}

void PresentBuckets::wait_for_updates(Context& ctx) {
  for (Bucket& bucket : buckets_) ctx.stream().wait(std::exchange(bucket.update, {}));
}

void PresentBuckets::wait_all(Context& ctx) {
  wait_for_updates(ctx);
  for (Bucket& bucket : buckets_) {
    if (bucket.gather) bucket.gather->wait(ctx);
  }
}

void PresentBuckets::complete(Context& ctx) {
  wait_all(ctx);
  for (Bucket& bucket : buckets_) {
    if (bucket.gather) bucket.gather->complete(ctx);
  }
}

/// The passes of a step in turn, or of two, of which the first alone finds nothing there.
std::vector<int> PresentBuckets::gathers_of_step(int microbatches, bool trained) const {
  std::vector<int> times(buckets_.size(), 0);
  std::vector<bool> present(buckets_.size(), false);
  const auto need = [&](std::size_t index) {
    if (!buckets_[index].shares || present[index]) return;
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].room == buckets_[index].room) present[i] = false;
    }
    present[index] = true;
    ++times[index];
  };
  const auto pass = [&](Order order) {
    int units = 0;
    for (const Bucket& bucket : buckets_) units = std::max(units, bucket.last_unit + 1);
    for (int i = 0; i < units; ++i) {
      const int unit = order == Order::ascending ? i : units - 1 - i;
      for (std::size_t b = 0; b < buckets_.size(); ++b) {
        if (buckets_[b].has(unit)) need(b);
      }
      for (const bool of_experts : {false, true}) {
        if (const auto next = next_shared(unit, order, of_experts)) need(*next);
      }
    }
  };
  for (int step = trained ? 1 : 0; step < 2; ++step) {
    std::ranges::fill(times, 0);
    for (int i = 0; i < microbatches; ++i) {
      pass(Order::ascending);
      pass(Order::descending);
    }
  }
  return times;
}

std::vector<NamedMovement> PresentBuckets::movements(std::string_view name, int microbatches,
                                                     bool trained) const {
  constexpr std::string_view kAfterUpdate = "after its update";
  const std::vector<int> times = gathers_of_step(microbatches, trained);
  std::vector<NamedMovement> all;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (!bucket.gather) continue;
    const auto add = [&](std::span<const layout::Step> steps, int count, std::string_view starts,
                         std::string_view behind) {
      if (steps.empty() || count == 0) return;
      all.push_back({name,
                     bucket.first_unit,
                     bucket.last_unit,
                     {steps.begin(), steps.end()},
                     count,
                     starts,
                     behind});
    };
    const int updates = trained ? 1 : 0;
    add(bucket.gather->update_steps(), updates, kAfterUpdate, "updates of the buckets after it");
    if (bucket.shares) {
      add(bucket.gather->steps(), times[i], "one bucket ahead of forward and backward",
          "the bucket before it in the pass");
    } else {
      add(bucket.gather->steps(), updates, kAfterUpdate, "forward of the units before it");
    }
  }
  return all;
}

}  // namespace hyperslab::sharding
