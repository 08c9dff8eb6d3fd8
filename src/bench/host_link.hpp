// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/comm/world.hpp"
#include "hyperslab/core/device.hpp"

namespace hyperslab::bench {

/// Bytes a second from the host's memory to the device of the slowest rank, while as much comes
/// back and all other ranks do the same. On CPU ranks, whose device is the host: of copies.
/// Collective over the world.
[[nodiscard]] double host_link_rate(comm::World& world, Device device);

}  // namespace hyperslab::bench
