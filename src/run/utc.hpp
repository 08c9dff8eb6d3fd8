// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace hyperslab::run {

/// The time now, as "2026-01-02T03:04:05Z".
[[nodiscard]] std::string utc_now();

}  // namespace hyperslab::run
