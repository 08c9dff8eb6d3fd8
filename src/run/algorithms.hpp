// SPDX-License-Identifier: Apache-2.0
// The algorithms of matrix products as a run keeps them: in its directory and in its checkpoints.
#pragma once

#include <string>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/ops/algorithm_cache.hpp"
#include "resume.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// The table in a text, empty for an empty one. One that cannot be read is left out with a warning
/// in the log that names `where`, because it only saves time and keeps bits.
[[nodiscard]] ops::AlgorithmCache read_algorithms(const std::string& text,
                                                  const std::string& where);

/// The table in a file, in the same way; empty if there is no file.
[[nodiscard]] ops::AlgorithmCache read_algorithms_file(const std::string& path);

/// Replaces the file in one step, if it does not hold the table already. Throws Error(storage).
void write_algorithms_file(const std::string& path, const ops::AlgorithmCache& table);

/// The tables of all ranks in one, equal on all of them: of several algorithms for a kind the
/// lowest rank's. Kinds that no rank has come from rank 0's `kept`. Collective.
[[nodiscard]] ops::AlgorithmCache merge_algorithms(comm::World& world,
                                                   const ops::AlgorithmCache& mine,
                                                   const ops::AlgorithmCache& kept);

/// Before the first step, and before any graph is captured: ranks that run the same kind of GEMM
/// run the same algorithm, now and when the run is resumed, so that replicas keep equal bits. Reads
/// and writes algorithms.txt of the run. Returns those in use, on all ranks; nothing on the CPU.
/// Collective; waits for the device.
[[nodiscard]] ops::AlgorithmCache choose_algorithms(const Start& start, train::Trainer& trainer,
                                                    io::Loader& loader, ResumePoint point);

}  // namespace hyperslab::run
