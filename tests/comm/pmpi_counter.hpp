// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hyperslab/comm/communicator.hpp"

/// What really went to MPI, seen from MPI's profiling interface: linking `hyperslab_test_pmpi` puts
/// counters between the program and the library.
namespace hyperslab::test::pmpi {

struct Count {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< as comm::Traffic counts them
};

/// Counts by MPI function ("MPI_Iallreduce") of the communicators that have this name.
[[nodiscard]] std::map<std::string, Count> counts(const std::string& communicator);
/// The same by kind of call; exposed_seconds stays 0.
[[nodiscard]] comm::Traffic traffic(const std::string& communicator);
/// The names of all communicators that were used.
[[nodiscard]] std::vector<std::string> communicators();
void clear();

}  // namespace hyperslab::test::pmpi
