// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/tasks/records.hpp"

#include <nlohmann/json.hpp>

namespace hyperslab::tasks {

nlohmann::ordered_json to_json(const Result& result) {
  nlohmann::ordered_json line = {{"task", result.task},
                                 {"metric", result.metric},
                                 {"questions", result.questions},
                                 {"endings", result.endings}};
  for (const Figure& figure : result.figures) {
    line[figure.name] = figure.value;
    line[figure.name + "_stderr"] = figure.standard_error;  // null if it is no number
  }
  return line;
}

std::string record_line(std::int64_t step, const std::vector<Result>& results) {
  nlohmann::ordered_json line = {{"step", step}};
  line["tasks"] = nlohmann::ordered_json::array();
  for (const Result& result : results) line["tasks"].push_back(to_json(result));
  return line.dump();
}

}  // namespace hyperslab::tasks
