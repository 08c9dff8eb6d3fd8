// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab {

/// `text` for a terminal: control characters (C1's as well) and marks of direction become
/// '?', so that a name out of a file can neither move the cursor, begin a line, nor turn the text.
/// Ends of lines stay if `lines` is true.
[[nodiscard]] std::string printable(std::string_view text, bool lines = false);

}  // namespace hyperslab
