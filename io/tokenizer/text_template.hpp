// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// Reads the ids that `post_processor` of the tokenizer.json `path` (of `tokens` ids) adds to one
/// text. null and ByteLevel (which changes offsets alone) add none; TemplateProcessing, also in a
/// Sequence, adds its special tokens. Throws Error(data) for other processors.
[[nodiscard]] TextTemplate read_text_template(const std::string& path,
                                              const nlohmann::json& post_processor,
                                              std::int64_t tokens);

}  // namespace hyperslab::io
