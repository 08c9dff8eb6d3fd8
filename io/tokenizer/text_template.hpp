// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/io/tokenizer.hpp"

namespace hyperslab::io {

/// What `post_processor` of the tokenizer.json `path`, which has `tokens` ids, adds to a single
/// text: nothing if it is null or ByteLevel (it changes offsets alone), the special tokens of a
/// TemplateProcessing, or those of a Sequence of such. Throws Error(data) for others.
[[nodiscard]] TextTemplate read_text_template(const std::string& path,
                                              const nlohmann::json& post_processor,
                                              std::int64_t tokens);

}  // namespace hyperslab::io
