// SPDX-License-Identifier: Apache-2.0
#include "shorten.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "predicates.hpp"

namespace hyperslab::deck {
namespace {

class Shortener {
 public:
  Shortener(train::Config& config, Reader& reader) : config_(config), reader_(reader) {}

  std::string cut() {
    for (const char* const key : {"train.steps", "train.epochs", "schedule.warmup_steps",
                                  "timing.trace_steps", "checkpoint.every"}) {
      if (reader_.is_bad(key)) return {};  // which is said anyway
    }
    std::int64_t& steps = config_.train.steps;
    std::int64_t& epochs = config_.train.epochs;
    if (steps > 0 && is_overridden("train.steps")) {
      drop("train.epochs", epochs);
      if (epochs == 0) cut_to(steps);
    } else if (epochs > 0 && is_overridden("train.epochs")) {
      drop("train.steps", steps);
    }
    if (config_.checkpoint.every == 0 && is_overridden("checkpoint.every")) {
      drop("checkpoint.keep_every", config_.checkpoint.keep_every);
    }
    return std::move(cuts_);
  }

 private:
  bool is_overridden(const std::string& key) {
    return reader_.has(key) && reader_.mark_of(key).override_index >= 0;
  }

  void note(const std::string& text) { cuts_ += (cuts_.empty() ? "" : ", ") + text; }

  void drop(const std::string& key, std::int64_t& value) {
    if (value == 0 || is_overridden(key)) return;
    note(fmt::format("{} {} left out", key, value));
    value = 0;
  }

  void cut_to(std::int64_t steps) {
    std::int64_t& warmup = config_.schedule.warmup_steps;
    const std::int64_t decay =
        config_.schedule.name == optim::ScheduleKind::wsd ? decay_steps(config_) : 0;
    const std::int64_t room = std::max<std::int64_t>(0, steps - decay);
    if (warmup > room && !is_overridden("schedule.warmup_steps")) {
      note(fmt::format("schedule.warmup_steps cut from {} to {}", warmup, room));
      warmup = room;
    }
    std::vector<std::int64_t>& traced = config_.timing.trace_steps;
    if (is_overridden("timing.trace_steps")) return;
    const auto dropped = std::erase_if(traced, [&](std::int64_t step) { return step > steps; });
    if (dropped > 0) {
      note(fmt::format("timing.trace_steps cut to the {} up to step {}", traced.size(), steps));
    }
  }

  train::Config& config_;
  Reader& reader_;
  std::string cuts_;
};

}  // namespace

std::string shorten(train::Config& config, Reader& reader) {
  return Shortener(config, reader).cut();
}

}  // namespace hyperslab::deck
