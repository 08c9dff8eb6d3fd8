// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <ostream>
#include <vector>

#include "hyperslab/pipeline/schedule.hpp"

namespace hyperslab::test {

struct PipelineLayout {
  pipeline::Schedule schedule = pipeline::Schedule::gpipe;
  int stages = 1;
  int virtual_stages = 1;
  int microbatches = 1;
  [[nodiscard]] pipeline::Program program() const {
    return pipeline::make_program(schedule, stages, virtual_stages, microbatches);
  }
};

inline void PrintTo(const PipelineLayout& layout, std::ostream* out) {  // NOLINT: GoogleTest's name
  *out << pipeline::name_of(layout.schedule) << " p " << layout.stages << " v "
       << layout.virtual_stages << " m " << layout.microbatches;
}

inline constexpr std::array kSchedules = {
    pipeline::Schedule::gpipe, pipeline::Schedule::one_forward_one_backward,
    pipeline::Schedule::interleaved, pipeline::Schedule::zero_bubble,
    pipeline::Schedule::forward_only};

/// Every legal layout of a schedule in these bounds, v to 4.
inline std::vector<PipelineLayout> legal_layouts(pipeline::Schedule schedule, int most_stages,
                                                 int most_microbatches) {
  using pipeline::Schedule;
  const bool chunks = schedule == Schedule::interleaved || schedule == Schedule::forward_only;
  std::vector<PipelineLayout> all;
  for (int p = 1; p <= most_stages; ++p) {
    for (int v = 1; v <= (chunks && p > 1 ? 4 : 1); ++v) {
      const int step = schedule == Schedule::interleaved && v > 1 ? p : 1;
      for (int m = step; m <= most_microbatches; m += step) all.push_back({schedule, p, v, m});
    }
  }
  return all;
}

}  // namespace hyperslab::test
