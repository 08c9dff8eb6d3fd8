// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "hyperslab/comm/world.hpp"

namespace hyperslab::comm {

/// The NCCL library in use, such as "NCCL 2.28.9"; empty in builds without CUDA.
[[nodiscard]] std::string nccl_version();

/// Throws Error(device), alike on all ranks, if two ranks of the world gave the same GPU of the
/// same machine; it names both. `bus_id`: hyperslab::device_bus_id() of this rank. Collective.
void require_distinct_gpus(World& world, const std::string& bus_id);

/// Throws Error(device), alike on all ranks, if ranks use different versions of NCCL or one that
/// is older than the headers of this build. Collective.
void require_one_nccl(World& world);

}  // namespace hyperslab::comm
