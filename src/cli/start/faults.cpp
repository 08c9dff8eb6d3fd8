// SPDX-License-Identifier: Apache-2.0
#include "faults.hpp"

#include <cstdlib>

#include "hyperslab/comm/time_limit.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::cli {

std::optional<Error> set_faults() {
  try {
    const char* const value = std::getenv("HYPERSLAB_FAULT");
    fault::set(value == nullptr ? "" : value);
    fault::set_rank(comm::launcher_rank().value_or(0));
    fault::reach("start.program");
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void begin_faults(const comm::World& world, const std::optional<Error>& wrong) {
  if (wrong) throw Error(*wrong);
  fault::set_rank(world.rank());
  if (const auto text = fault::warning(); !text.empty() && world.rank() == 0) log::warn(text);
  fault::reach("start.world");
}

}  // namespace hyperslab::cli
