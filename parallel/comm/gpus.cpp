// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/gpus.hpp"

#include <fmt/format.h>

#include <string>

#include "host_id.hpp"
#include "hyperslab/core/error.hpp"
#include "nccl.hpp"

namespace hyperslab::comm {
namespace {

[[maybe_unused]] std::string text_of(int version) {
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::string nccl_version() {
  if constexpr (kHasCuda) return text_of(nccl_library_version());
  return {};
}

void require_distinct_gpus(World& world, const std::string& bus_id) {
  const auto gpus = world.all_gather(machine_id(world.host()) + ' ' + bus_id);
  const auto hosts = world.all_gather(world.host());
  for (std::size_t b = 1; b < gpus.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (gpus[a] != gpus[b]) continue;
      const std::string bus = gpus[b].substr(gpus[b].rfind(' ') + 1);
      throw Error(ExitCode::device,
                  fmt::format("ranks {} and {} on host {} both use the GPU at {}, and NCCL wants "
                              "one each; start fewer ranks per host (mpirun --map-by ppr:N:node), "
                              "or let CUDA_VISIBLE_DEVICES show every rank all GPUs",
                              a, b, hosts[b], bus))
          .on_all_ranks();
    }
  }
}

void require_one_nccl(World& world) {
  const auto versions = world.all_gather(nccl_version());
  for (std::size_t r = 1; r < versions.size(); ++r) {
    if (versions[r] == versions[0]) continue;
    throw Error(ExitCode::device,
                fmt::format("rank 0 uses {}, rank {} {}; make LD_LIBRARY_PATH equal on all hosts",
                            versions[0], r, versions[r]))
        .on_all_ranks();
  }
  if constexpr (kHasCuda) {
    constexpr int kPatches = 100;
    if (nccl_library_version() / kPatches >= nccl_header_version() / kPatches) return;
    throw Error(ExitCode::device,
                fmt::format("found {}, this program was built for {}; put the newer libnccl.so.2 "
                            "first in LD_LIBRARY_PATH",
                            versions[0], text_of(nccl_header_version())))
        .on_all_ranks();
  }
}

}  // namespace hyperslab::comm
