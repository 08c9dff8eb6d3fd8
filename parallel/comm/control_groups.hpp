// SPDX-License-Identifier: Apache-2.0
// The control groups that limit this process.
#pragma once

#include <string>
#include <vector>

namespace hyperslab::comm {

/// A folder with the limits of one control group.
struct ControlGroup {
  std::string folder;
  bool second_version = false;  ///< cgroup2, whose files have other names
};

/// The groups of a process that can hold limits of `controller` ("cpu", "memory"), versions 1 and
/// 2, and the groups above them, from its folder in /proc; the innermost first. Folders may be
/// missing; empty if the system does not report it.
[[nodiscard]] std::vector<ControlGroup> control_groups(
    const std::string& controller, const std::string& process_folder = "/proc/self");

/// The parts between separators.
[[nodiscard]] std::vector<std::string> split_text(const std::string& text, char separator);

}  // namespace hyperslab::comm
