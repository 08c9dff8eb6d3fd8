// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/run/deck_changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

#include "hyperslab/core/log.hpp"
#include "hyperslab/train/renamed_keys.hpp"

namespace hyperslab::run {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

/// By the names of today.
Values values_of(const std::string& deck) {
  Values values;
  std::istringstream lines(deck);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    if (line.front() != ' ') {
      section = line.substr(0, colon);
      continue;
    }
    const std::size_t begin = line.find_first_not_of(' ');
    const std::size_t value = line.find_first_not_of(' ', colon + 1);
    const std::string given = section + "." + line.substr(begin, colon - begin);
    const auto key = std::string(train::current_key(given));
    const std::string text = value == std::string::npos ? "" : line.substr(value);
    values.emplace_back(key, train::current_value(key, text));
  }
  return values;
}

const std::string* find(const Values& values, const std::string& key) {
  const auto found = std::ranges::find(values, key, &Values::value_type::first);
  return found == values.end() ? nullptr : &found->second;
}

/// A key that is not known to be harmless may change the training. That the data are the same is
/// checked by their fingerprint; begin and end of text matter to exports alone.
bool changes_training(std::string_view key) {
  constexpr std::array<std::string_view, 5> kSections = {"run.", "parallel.", "memory.",
                                                         "checkpoint.", "timing."};
  constexpr std::array<std::string_view, 21> kKeys = {"model.attention",
                                                      "model.bos_token",
                                                      "model.eos_tokens",
                                                      "data.train",
                                                      "data.validation",
                                                      "data.vocabulary",
                                                      "train.steps",
                                                      "train.epochs",
                                                      "train.microbatch",
                                                      "train.validate_every",
                                                      "train.validate_batches",
                                                      "train.tasks",
                                                      "train.tasks_every",
                                                      "train.sample_every",
                                                      "train.sample_prompts",
                                                      "train.sample_tokens",
                                                      "train.sample_temperature",
                                                      "train.log_norms",
                                                      "train.log_every",
                                                      "data.decode",
                                                      "data.threads"};
  if (key == "run.seed") return true;
  const bool in_section = std::ranges::any_of(
      kSections, [&](std::string_view section) { return key.starts_with(section); });
  return !in_section && std::ranges::find(kKeys, key) == kKeys.end();
}

}  // namespace

std::vector<DeckChange> deck_changes(const std::string& was, const std::string& is) {
  const Values before = values_of(was);
  const Values after = values_of(is);
  std::vector<DeckChange> changes;
  for (const auto& [key, value] : after) {
    const std::string* earlier = find(before, key);
    if (earlier == nullptr || *earlier == value) continue;  // an older program has fewer keys
    changes.push_back({key, *earlier, value, changes_training(key)});
  }
  for (const auto& [key, value] : before) {
    if (find(after, key) == nullptr) changes.push_back({key, value, "", changes_training(key)});
  }
  return changes;
}

std::string listed(const std::vector<DeckChange>& changes, bool changes_training) {
  std::string text;
  for (const auto& [key, was, is, changes_it] : changes) {
    if (changes_it != changes_training) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {} -> {}", key, was.empty() ? "(no such key)" : was,
                        is.empty() ? "(no such key)" : is);
  }
  return text;
}

void report_deck_changes(const std::string& was, const std::string& is, const std::string& what) {
  const std::vector<DeckChange> changes = deck_changes(was, is);
  const std::string training = listed(changes, true);
  const std::string other = listed(changes, false);
  if (!training.empty()) {
    log::warn(what + training);
    if (!other.empty()) log::info("also changed: " + other);
  } else if (!other.empty()) {
    log::info(what + other);
  }
}

}  // namespace hyperslab::run
