// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace hyperslab::cli {

struct NamedPrompts {
  std::vector<std::string> texts;
  std::vector<nlohmann::json>
      ids;  ///< one for each prompt, null if it has none; or empty: no prompt has
};

/// The prompts of a file. Of a .jsonl: objects {"prompt": TEXT, "id": any}, one a line, the id if
/// it is there; other keys are refused. Of another file: separated by blank lines if it has any,
/// else one a line. Throws Error(data) with the number of a line that it cannot take, and if there
/// are no prompts. Pipes are read to their end; a file has at most 1 GiB.
[[nodiscard]] NamedPrompts read_prompt_file(const std::string& path);

}  // namespace hyperslab::cli
