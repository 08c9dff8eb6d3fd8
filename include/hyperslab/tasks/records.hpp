// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hyperslab/tasks/figures.hpp"

namespace hyperslab::tasks {

/// task, metric, questions, endings, and of every figure NAME and NAME_stderr (null if there is
/// none).
[[nodiscard]] nlohmann::ordered_json to_json(const Result& result);

/// A line of JSON for a file of records: the step, and the tasks as to_json().
[[nodiscard]] std::string record_line(std::int64_t step, const std::vector<Result>& results);

}  // namespace hyperslab::tasks
