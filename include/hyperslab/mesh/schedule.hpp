// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hyperslab::mesh {

/// In which order a pipeline rank does the forward and backward passes of a step's microbatches.
enum class Schedule : std::uint8_t {
  gpipe,                     ///< all forwards, then all backwards (Huang et al. 2019)
  one_forward_one_backward,  ///< "1f1b", PipeDream-flush (Narayanan et al. 2021, fig. 4 top)
  interleaved,               ///< 1f1b over several chunks a rank (Narayanan et al. 2021, fig. 4)
  zero_bubble,               ///< ZB-H1 (Qi et al. 2023, fig. 3): weight gradients fill the gaps
  forward_only,              ///< evaluation; no deck names it
};
inline constexpr std::array kTrainingSchedules = {Schedule::gpipe,
                                                  Schedule::one_forward_one_backward,
                                                  Schedule::interleaved, Schedule::zero_bubble};

[[nodiscard]] constexpr std::string_view name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe: return "gpipe";
    case Schedule::one_forward_one_backward: return "1f1b";
    case Schedule::interleaved: return "interleaved";
    case Schedule::zero_bubble: return "zero_bubble";
    case Schedule::forward_only: return "forward_only";
  }
  return "?";
}

}  // namespace hyperslab::mesh
