// SPDX-License-Identifier: Apache-2.0
#include "problems.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::deck {

namespace {

constexpr std::size_t kMostShown = 50;

/// A problem is one line, whatever the deck's keys and texts hold.
std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return text;
}

}  // namespace

void Problems::add(Mark mark, std::string key, std::string text) {
  problems_.push_back({mark, one_line(std::move(key)), one_line(std::move(text))});
}

void Problems::raise(const std::string& file, std::span<const std::string> overrides) const {
  if (problems_.empty()) return;
  auto sorted = problems_;
  std::ranges::stable_sort(sorted, {}, &Problem::mark);
  // Numbers of one override may all be wrong in the same way.
  const auto same = std::ranges::unique(sorted, [](const Problem& a, const Problem& b) {
    return a.mark.override_index >= 0 && a.mark.override_index == b.mark.override_index &&
           a.text == b.text;
  });
  sorted.erase(same.begin(), same.end());
  std::string report;
  const std::size_t left_out = sorted.size() - std::min(sorted.size(), kMostShown);
  sorted.resize(sorted.size() - left_out);
  for (const auto& [mark, key, text] : sorted) {
    if (!report.empty()) report += '\n';
    if (mark.override_index >= 0) {
      report += fmt::format("--set {}: {}",
                            overrides[static_cast<std::size_t>(mark.override_index)], text);
    } else {
      report += fmt::format("{}:{}:{}: {}{}{}", file, mark.line, mark.column, key,
                            key.empty() ? "" : ": ", text);
    }
  }
  if (left_out > 0) report += fmt::format("\n... and {} more", left_out);
  throw Error(ExitCode::usage, report);
}

}  // namespace hyperslab::deck
