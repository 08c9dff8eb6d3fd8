// SPDX-License-Identifier: Apache-2.0
#include "dataset/counted_targets.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "hyperslab/ops/loss.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kPiece = 2048;  // ids or masks on the stack at once

/// Calls action(first, targets) for pieces of the targets [first, first + count).
template <class Action>
void each_piece(const TokenSource& source, const TargetRules& rules, std::int64_t first,
                std::int64_t count, Action&& action) {
  std::array<std::int32_t, kPiece + 1> piece;  // one token, then the targets after it
  for (const std::int64_t end = first + count; first < end;) {
    const auto here = std::min(static_cast<std::int64_t>(kPiece), end - first);
    const auto tokens = std::span(piece).first(static_cast<std::size_t>(here) + 1);
    const auto targets = tokens.subspan(1);
    source.read(first - 1, tokens);
    ignore_targets(source, rules, first, tokens.front(), targets);
    action(first, targets);
    first += here;
  }
}

}  // namespace

void ignore_targets(const TokenSource& source, const TargetRules& rules, std::int64_t first,
                    std::int32_t before, std::span<std::int32_t> targets) {
  const bool starts = rules.end_token >= 0 && !rules.predicts_starts;
  for (std::int32_t& target : targets) {
    const bool ignored = (rules.ignore_token >= 0 && target == rules.ignore_token) ||
                         (starts && before == rules.end_token);
    before = target;
    if (ignored) target = ops::kIgnoredTarget;
  }
  if (!source.has_mask()) return;
  std::array<std::uint8_t, kPiece> mask;
  while (!targets.empty()) {
    const std::size_t count = std::min(kPiece, targets.size());
    source.read_mask(first, std::span(mask).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      targets[i] = mask[i] == 0 ? ops::kIgnoredTarget : targets[i];
    }
    targets = targets.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

std::int64_t count_targets(const TokenSource& source, const TargetRules& rules, std::int64_t first,
                           std::int64_t count) {
  std::int64_t counted = 0;
  each_piece(source, rules, first, count, [&](std::int64_t /*first*/, auto targets) {
    counted += std::ssize(targets) - std::ranges::count(targets, ops::kIgnoredTarget);
  });
  return counted;
}

double sum_weights(const TokenSource& source, const TargetRules& rules, std::int64_t first,
                   std::int64_t count) {
  const TokenColumns columns = source.columns();
  const auto width = static_cast<std::size_t>(columns.count());
  const auto column = static_cast<std::size_t>(columns.at(TokenColumn::weight));
  std::vector<float> values;
  double sum = 0;
  each_piece(source, rules, first, count, [&](std::int64_t at, auto targets) {
    values.resize(targets.size() * width);
    source.read_values(at, values);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == ops::kIgnoredTarget) continue;
      sum += static_cast<double>(values[i * width + column]);
    }
  });
  return sum;
}

}  // namespace hyperslab::io
