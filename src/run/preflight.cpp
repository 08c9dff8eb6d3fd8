// SPDX-License-Identifier: Apache-2.0
#include "preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/run/run_lock.hpp"

namespace hyperslab::run {
namespace {

constexpr const char* kRemedy =
    "make room, keep fewer (checkpoint.keep), or set checkpoint.directory";

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Checkpoints that a start writes: the regular ones, and one where it ends.
std::int64_t planned_saves(const io::CheckpointConfig& config, std::int64_t first_step,
                           std::int64_t last_step) {
  const std::int64_t every = config.every;
  const std::int64_t regular = every > 0 ? last_step / every - (first_step - 1) / every : 0;
  return std::max<std::int64_t>(regular, 1);
}

}  // namespace

std::string check_space(const CheckpointSpace& space) {
  if (space.free < space.bytes) {
    throw Error(
        ExitCode::storage,
        fmt::format("{}: a checkpoint needs {:.1f} MiB and {:.1f} MiB are free; {}",
                    space.directory, mebibytes(space.bytes), mebibytes(space.free), kRemedy));
  }
  std::int64_t more = space.planned;
  if (space.keep > 0) {
    const std::int64_t at_once = space.keep + 1;  // the oldest goes when the newest is complete
    more = std::min(more, std::max<std::int64_t>(1, at_once - space.existing));
  }
  const auto fit = static_cast<std::int64_t>(space.free / std::max<std::uint64_t>(1, space.bytes));
  if (fit >= more) return {};
  return fmt::format(
      "{}: there is room for {} more checkpoint{} of {:.1f} MiB ({:.1f} MiB are free), and this "
      "start will need room for {}; {}",
      space.directory, fit, fit == 1 ? "" : "s", mebibytes(space.bytes), mebibytes(space.free),
      more, kRemedy);
}

void check_space(const Start& start, std::uint64_t bytes, std::int64_t first_step,
                 std::int64_t last_step) {
  const io::CheckpointConfig& config = start.config.checkpoint;
  std::error_code error;
  const std::filesystem::space_info disk = std::filesystem::space(start.checkpoints, error);
  if (error) return;  // the file system does not report it
  CheckpointSpace space;
  space.directory = start.checkpoints;
  space.free = disk.available;
  space.bytes = bytes;
  space.existing = std::ssize(io::list_checkpoints(start.checkpoints));
  space.keep = config.keep;
  space.planned = planned_saves(config, first_step, last_step);
  const std::string warning = check_space(space);
  if (!warning.empty()) log::warn(warning);
}

void probe_directories(comm::Peers& peers, bool probes, std::span<const std::string> directories) {
  comm::agree(peers, [&] {
    if (!probes) return;
    for (const std::string& directory : directories) {
      probe_directory(directory, fmt::format("{}.", peers.rank()));
    }
  });
}

}  // namespace hyperslab::run
