// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/model/arenas.hpp"

namespace hyperslab::model {

Arenas Arenas::measuring() {
  return {Arena("parameters"),  Arena("gradients"), Arena("optimizer"),
          Arena("activations"), Arena("scratch"),   Arena("host")};
}

Arenas Arenas::real(Device device, const MemoryPlan& plan, bool canary) {
  return {Arena("parameters", device, plan.parameters, canary),
          Arena("gradients", device, plan.gradients, canary),
          Arena("optimizer", device, plan.optimizer, canary),
          Arena("activations", device, plan.activations, canary),
          Arena("scratch", device, plan.scratch, canary),
          Arena("host", device, plan.host, canary, Home::host)};
}

MemoryPlan Arenas::used() const {
  return {parameters.used_bytes(),  gradients.used_bytes(), optimizer.used_bytes(),
          activations.used_bytes(), scratch.used_bytes(),   0,
          host.used_bytes()};
}

}  // namespace hyperslab::model
