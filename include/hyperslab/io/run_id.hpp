// SPDX-License-Identifier: Apache-2.0
// The identity of a directory of checkpoints: checkpoints in the memory of hosts belong to it.
#pragma once

#include <string>

namespace hyperslab::io {

/// The id in `<checkpoints>/run_id`. Empty if there is none, or if the file is of another
/// directory, as in a copy or in a directory that was moved.
[[nodiscard]] std::string read_run_id(const std::string& checkpoints);
/// Writes `id` there, or another random one if it is empty, and returns it. The file holds the id
/// and the path of the directory, links resolved. Throws Error(storage).
std::string write_run_id(const std::string& checkpoints, const std::string& id = "");
/// Removes the file: checkpoints in memory are left out from then on. Throws Error(storage).
void remove_run_id(const std::string& checkpoints);

}  // namespace hyperslab::io
