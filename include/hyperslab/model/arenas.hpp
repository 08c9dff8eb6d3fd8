// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hyperslab/core/arena.hpp"

namespace hyperslab::model {

/// Bytes of every arena of a rank, and of the largest workspace, found by a run of the setup and of
/// one step on `meta`. All are of the device, but for `host`.
struct MemoryPlan {
  std::size_t parameters = 0;
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t activations = 0;
  std::size_t scratch = 0;
  std::size_t workspace = 0;
  std::size_t host = 0;  ///< in the host's memory
  /// Bytes of the device.
  [[nodiscard]] std::size_t total() const {
    return parameters + gradients + optimizer + activations + scratch + workspace;
  }
};

/// The memory of a rank, by how long it lives and who shares it.
struct Arenas {
  Arena parameters;  ///< masters and compute copies
  Arena gradients;
  Arena optimizer;    ///< moments of AdamW
  Arena activations;  ///< inputs and saved activations, a ring of microbatch slots
  Arena scratch;      ///< shared by all layers and microbatches; step state and sums
  Arena host;         ///< in the host's memory: state that rests there (Home::host)

  /// Arenas on `meta` that only measure.
  [[nodiscard]] static Arenas measuring();
  /// Real arenas of exactly the planned sizes. `canary`: see Arena.
  [[nodiscard]] static Arenas real(Device device, const MemoryPlan& plan, bool canary);
  [[nodiscard]] MemoryPlan used() const;
  [[nodiscard]] std::vector<const Arena*> all() const {
    return {&parameters, &gradients, &optimizer, &activations, &scratch, &host};
  }
};

}  // namespace hyperslab::model
