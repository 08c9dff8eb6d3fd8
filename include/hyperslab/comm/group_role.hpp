// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace hyperslab::comm {

/// The role of a group: the parts of training that its ranks share. A communicator gets it when it
/// is made; all that depends on the kind of group asks for it.
enum class GroupRole : std::uint8_t {
  world,         ///< all ranks: they share the sums of a step
  data,          ///< the parameters; each rank has other samples or tokens
  tensor,        ///< every layer
  pipeline,      ///< the layers, in stages
  context,       ///< the samples; each rank has other tokens of them
  shard,         ///< in the data group, the shards of state; other data ranks hold copies of them
  replica,       ///< in the data group, copies of the same shards
  expert,        ///< the layers with experts, of which each rank holds others
  expert_data,   ///< in the data group, the parameters of the same experts
  expert_shard,  ///< in expert_data, the shards of state
  tied,          ///< the embedding table of the first and the last pipeline stage
  key_value,     ///< key-value heads, in a tensor group
  host,          ///< messages of setup and shutdown, not the data of a step
  other,
};

/// As logs, errors and timing files name it: "world", "data", ...
[[nodiscard]] constexpr std::string_view name_of(GroupRole role) {
  switch (role) {
    case GroupRole::world: return "world";
    case GroupRole::data: return "data";
    case GroupRole::tensor: return "tensor";
    case GroupRole::pipeline: return "pipeline";
    case GroupRole::context: return "context";
    case GroupRole::shard: return "shard";
    case GroupRole::replica: return "replica";
    case GroupRole::expert: return "expert";
    case GroupRole::expert_data: return "expert_data";
    case GroupRole::expert_shard: return "expert_shard";
    case GroupRole::tied: return "tied";
    case GroupRole::key_value: return "key_value";
    case GroupRole::host: return "host";
    case GroupRole::other: return "other";
  }
  return "?";
}

}  // namespace hyperslab::comm
