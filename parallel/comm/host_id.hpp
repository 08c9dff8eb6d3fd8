// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab::comm {

/// Equal for all processes of a machine, in containers too, whose host names may differ or repeat;
/// `host` if the system has no such id.
[[nodiscard]] std::string machine_id(const std::string& host);

/// Equal for the processes of a machine that can signal each other and meet on the loopback.
[[nodiscard]] std::string neighbourhood_id(const std::string& host);

}  // namespace hyperslab::comm
