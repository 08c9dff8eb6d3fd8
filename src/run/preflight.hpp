// SPDX-License-Identifier: Apache-2.0
// Checks of hosts, disks, links and devices before the first step.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "start.hpp"

namespace hyperslab::run {

/// Room for checkpoints in a directory, in bytes.
struct CheckpointSpace {
  std::string directory;
  std::uint64_t free = 0;
  std::uint64_t bytes = 0;    ///< the size of one checkpoint
  std::int64_t existing = 0;  ///< complete checkpoints that are there, and make room when they go
  std::int64_t keep = 0;      ///< as checkpoint.keep; 0: all
  std::int64_t planned = 0;   ///< checkpoints that this start will write
};
/// A warning if fewer than keep + 1 checkpoints fit at once; empty if they do. Throws
/// Error(storage) if not even one fits.
[[nodiscard]] std::string check_space(const CheckpointSpace& space);

/// Rank 0: the room for this start's checkpoints of `bytes` each, with a warning if it is short.
/// Throws Error(storage).
void check_space(const Start& start, std::uint64_t bytes, std::int64_t first_step,
                 std::int64_t last_step);

/// probe_directory() of each, on the ranks that say `probes`; an error names rank and host.
/// Collective.
void probe_directories(comm::Peers& peers, bool probes, std::span<const std::string> directories);

/// Times the groups of the mesh and a matrix product of every rank, if run.check_links asks for
/// it; rank 0 logs the rates, and a warning for each slow group, slow rank, and GPU of which
/// the driver says that something is wrong. Takes about a second; collective. Throws Error(usage)
/// if run.machine cannot be used.
void check_links(const Start& start, const mesh::Mesh& mesh, Device device);

}  // namespace hyperslab::run
