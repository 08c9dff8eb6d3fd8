// SPDX-License-Identifier: Apache-2.0
#include "host_link.hpp"

#include <algorithm>
#include <limits>

#include "hyperslab/core/arena.hpp"
#include "hyperslab/core/profiler.hpp"
#include "hyperslab/core/transfer.hpp"

namespace hyperslab::bench {

double host_link_rate(comm::World& world, Device device) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr int kCopies = 8;
  constexpr int kRounds = 3;
  const Shape shape = {static_cast<Dim>(kBytes)};
  const auto view = [&](const auto& buffer) {
    return View(buffer.data(), DType::u8, device, shape);
  };
  const PinnedBuffer from_host(device, kBytes);
  const PinnedBuffer to_host(device, kBytes);
  const Buffer arriving(device, kBytes);
  const Buffer leaving(device, kBytes);
  Stream to_device_link(device);
  Stream to_host_link(device);
  copy(to_host_link, view(from_host), view(leaving));
  to_host_link.record().wait();
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    world.barrier();
    const double begin = now_seconds();
    for (int i = 0; i < kCopies; ++i) {
      copy(to_device_link, view(from_host), view(arriving));
      copy(to_host_link, view(leaving), view(to_host));
    }
    to_device_link.record().wait();
    to_host_link.record().wait();
    best = std::min(best, now_seconds() - begin);
  }
  const auto slowest = static_cast<double>(world.max(static_cast<std::int64_t>(1e9 * best)));
  return kCopies * static_cast<double>(kBytes) / (1e-9 * slowest);
}

}  // namespace hyperslab::bench
