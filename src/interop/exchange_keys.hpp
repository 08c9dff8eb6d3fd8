// SPDX-License-Identifier: Apache-2.0
// The keys of a config.json that decide nothing here, or must have one value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/model/spec.hpp"

namespace hyperslab::interop {

enum class UnreadKey : std::uint8_t {
  harmless,  ///< decides nothing that the models that are exchanged compute
  neutral,   ///< would decide something, but has the value that stands for this program's way
  refused,   ///< asks for something that is not done here
  unknown,   ///< in no table
};
/// The kind of a key that the import has not read. A null stands for an absent key. The tables
/// have the keys of transformers 4.0 to 5.23, and of models derived from Llama.
[[nodiscard]] UnreadKey check_unread(model::Family family, const std::string& key,
                                     const nlohmann::json& value);
/// The value that a key must have, as JSON; empty if it must be absent or has no such rule.
[[nodiscard]] std::string neutral_value(model::Family family, const std::string& key);

}  // namespace hyperslab::interop
