// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/nn/expert_group.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::train {

/// The ranks that hold other experts than this one, with the deck's way of tokens on a device.
[[nodiscard]] inline nn::ExpertGroup expert_group_of(const Config& config, const mesh::Mesh& mesh,
                                                     Device device) {
  comm::Communicator* const group = mesh.expert_group();
  if (group == nullptr) return {};
  const auto kind = config.parallel.expert_exchange_on(device);
  return {*group, kind == mesh::ExchangeKind::all_gather
                      ? nn::exchange_by_all_gather(group, config.parallel.expert_rows)
                      : nn::exchange_by_all_to_all(*group)};
}

}  // namespace hyperslab::train
