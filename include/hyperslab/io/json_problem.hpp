// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace hyperslab::io {

/// Problem and place that an exception of nlohmann's JSON names, in one line: without the
/// identifier in brackets before it, and cut where it quotes a long text.
[[nodiscard]] std::string json_problem(const std::exception& error);

}  // namespace hyperslab::io
