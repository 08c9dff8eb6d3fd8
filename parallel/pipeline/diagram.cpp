// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/pipeline/diagram.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "hyperslab/pipeline/validate.hpp"

namespace hyperslab::pipeline {
namespace {

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return 'F';
    case ActionKind::backward: return 'B';
    case ActionKind::backward_input: return 'I';
    case ActionKind::backward_weight: return 'W';
    case ActionKind::exchange: return 'X';
  }
  return '?';
}

std::string cell(const Program& program, const Action& action) {
  std::string text = letter(action.kind) + std::to_string(action.microbatch);
  if (program.virtual_stages > 1 && program.virtual_stages <= 26) {
    text += static_cast<char>('a' + action.chunk);
  } else if (program.virtual_stages > 26) {
    text += ':' + std::to_string(action.chunk);
  }
  return text;
}

/// [rank][unit of time]
std::vector<std::vector<std::string>> cells(const Program& program) {
  const Simulation simulation = simulate(program, {});
  const auto units = static_cast<std::size_t>(std::lround(simulation.seconds));
  std::vector<std::vector<std::string>> rows;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::vector<std::string>& row = rows.emplace_back(units, ".");
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const Action& action = program.ranks[rank][i];
      if (action.kind == ActionKind::exchange) continue;
      const Interval& interval = simulation.actions[rank][i];
      const auto begin = static_cast<std::size_t>(std::lround(interval.begin));
      const auto end = static_cast<std::size_t>(std::lround(interval.end));
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(begin),
                row.begin() + static_cast<std::ptrdiff_t>(end), "=");
      row[begin] = cell(program, action);
    }
  }
  return rows;
}

}  // namespace

std::string diagram(const Program& program, int line_width) {
  const auto rows = cells(program);
  std::size_t width = 0;
  for (const auto& row : rows) {
    for (const std::string& text : row) width = std::max(width, text.size());
  }
  const std::string last = fmt::format("rank {}", rows.size() - 1);
  const int room = line_width - static_cast<int>(last.size());
  const auto columns = static_cast<std::size_t>(std::max(1, room / static_cast<int>(width + 1)));
  std::string text;
  for (std::size_t begin = 0; begin < rows.front().size(); begin += columns) {
    const std::size_t end = std::min(begin + columns, rows.front().size());
    text += fmt::format("{}time {} to {}\n", begin == 0 ? "" : "\n", begin, end);
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      std::string line = fmt::format("{:<{}}", fmt::format("rank {}", rank), last.size());
      for (std::size_t t = begin; t < end; ++t)
        line += fmt::format(" {:<{}}", rows[rank][t], width);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + '\n';
    }
  }
  return text;
}

}  // namespace hyperslab::pipeline
