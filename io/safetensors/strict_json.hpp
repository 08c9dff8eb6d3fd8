// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace hyperslab::io {

/// The JSON object in `text`. Throws Error(checkpoint) that names `file`: no JSON, no object,
/// duplicate keys, nesting deeper than kDeepestJson.
[[nodiscard]] nlohmann::json strict_json(const std::string& text, const std::string& file);

/// The text of a whole file of at most `most` bytes; throws Error(checkpoint).
[[nodiscard]] std::string foreign_text(const std::string& path, std::uint64_t most);

/// A name from a file as it may stand in a message: quoted, on one line, not too long.
[[nodiscard]] std::string shown(const std::string& name);

}  // namespace hyperslab::io
