// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab::log {

/// Sets the prefix "[r5 dp0 tp1 pp2]" and the levels: rank 0 shows info and worse on stderr, other
/// ranks warnings and worse.
void setup(int rank, const std::string& prefix);

void debug(const std::string& text);
void info(const std::string& text);
void warn(const std::string& text);
void error(const std::string& text);

/// For destructors, which cannot throw: warns that `who` (a library, an op) made a call that
/// failed.
void failed_close(std::string_view who, std::string_view call, std::string_view text) noexcept;

}  // namespace hyperslab::log
