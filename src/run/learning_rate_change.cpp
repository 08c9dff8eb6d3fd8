// SPDX-License-Identifier: Apache-2.0
#include "learning_rate_change.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <vector>

#include "hyperslab/optim/schedule.hpp"
#include "hyperslab/run/deck_changes.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::run {
namespace {

/// A text that is no number leaves `number` as it is.
template <class Number>
bool read(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  Number found = 0;
  const auto [last, error] = std::from_chars(text.data(), end, found);
  if (error != std::errc() || last != end) return false;
  number = found;
  return true;
}

bool read(const std::string& text, optim::ScheduleKind& kind) {
  const auto found = std::ranges::find(optim::kScheduleKinds, text,
                                       [](const auto one) { return optim::name_of(one); });
  if (found == optim::kScheduleKinds.end()) return false;
  kind = *found;
  return true;
}

/// Puts the earlier value of a key of the schedule into `config`; false: it is another key.
bool undo(const DeckChange& change, train::Config& config) {
  const std::string& key = change.key;
  const std::string& was = change.was;
  if (key == "optimizer.lr") return read(was, config.optimizer.lr);
  if (key == "schedule.name") return read(was, config.schedule.name);
  if (key == "schedule.warmup_steps") return read(was, config.schedule.warmup_steps);
  if (key == "schedule.final_fraction") return read(was, config.schedule.final_fraction);
  if (key == "schedule.decay_fraction") return read(was, config.schedule.decay_fraction);
  if (key == "train.steps") return read(was, config.train.steps);
  if (key == "train.epochs") return read(was, config.train.epochs);
  return false;
}

/// A rate has the digits that the lines of a run show.
std::string rate_of(const train::Config& config, std::int64_t step,
                    std::int64_t samples_per_epoch) {
  return fmt::format("{:.4g}", optim::learning_rate(config.schedule, config.optimizer.lr, step,
                                                    train::total_steps(config, samples_per_epoch)));
}

}  // namespace

std::string learning_rate_change(const std::string& earlier_deck, const std::string& deck,
                                 const train::Config& config, std::int64_t step,
                                 std::int64_t samples_per_epoch) {
  train::Config earlier = config;
  std::vector<DeckChange> changes = deck_changes(earlier_deck, deck);
  std::erase_if(changes, [&](const DeckChange& change) { return !undo(change, earlier); });
  if (changes.empty()) return "";
  const std::string is = rate_of(config, step + 1, samples_per_epoch);
  const std::string was = rate_of(earlier, step + 1, samples_per_epoch);
  if (is == was) return "";
  std::string keys;
  for (const DeckChange& change : changes) {
    keys +=
        fmt::format("{}{} {} -> {}", keys.empty() ? "" : ", ", change.key, change.was, change.is);
  }
  return fmt::format("step {} has a learning rate of {}, by the deck of step {} it was {} ({})",
                     step + 1, is, step, was, keys);
}

}  // namespace hyperslab::run
