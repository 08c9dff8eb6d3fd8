// SPDX-License-Identifier: Apache-2.0
// Commands that describe the program and its decks, without MPI.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::cli {

/// Answers --help, --version, --keys, --rules and --completion on standard output; nothing if
/// `words` begin with anything else. Throws Error(usage).
[[nodiscard]] std::optional<ExitCode> answer(const std::vector<std::string>& words);

/// Why there is no command in `words`, and a suggestion; without one the overview.
[[nodiscard]] std::string unknown_command(const std::vector<std::string>& words);

/// A script that completes commands, options, keys of --set and files. `shell`: bash or zsh; throws
/// Error(usage) for others.
[[nodiscard]] std::string completion_script(const std::string& shell);

}  // namespace hyperslab::cli
