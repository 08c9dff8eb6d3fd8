// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperslab::io {

inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kLatestSuffix = "tmp";  ///< after a dot, while it is written
inline constexpr const char* kTemporary = ".tmp";  ///< suffix of folders never completed; a number
                                                   ///< follows if that name cannot be had
inline constexpr const char* kReplaced = ".replaced";  ///< suffix of a step while it is replaced

[[nodiscard]] std::string step_name(std::int64_t step);  ///< "step_00000120"
/// The step of such a name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of_name(const std::string& name);

/// A folder that has the name of a step; whether it is complete only its manifest can say.
struct StepFolder {
  std::int64_t step = 0;
  std::string path;
};
/// Ascending. A step that was being replaced when the program ended counts if its successor is
/// not there.
[[nodiscard]] std::vector<StepFolder> find_steps(const std::string& directory);

/// The step that the file `latest` names; nothing if it is missing or torn.
[[nodiscard]] std::optional<std::int64_t> latest_step(const std::string& directory);

/// Removes the remains of an ended program: unfinished steps, half-deleted ones, a half-written
/// `latest`. Those that cannot be removed stay, with a warning the first time.
void remove_stale(const std::string& directory);

/// A path for the unfinished step `name` ("step_00000120") at which there is nothing yet.
[[nodiscard]] std::string free_temporary(const std::string& directory, const std::string& name);

}  // namespace hyperslab::io
