// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "hyperslab/io/tokenizer.hpp"
#include "hyperslab/serve/completion.hpp"

namespace hyperslab::serve {

/// The bytes of a token as answers name it; special tokens have their names.
[[nodiscard]] std::string token_bytes(const io::Tokenizer& tokenizer, std::int32_t id);
/// The valid UTF-8 of bytes, with U+FFFD in place of what is none.
[[nodiscard]] std::string as_utf8(const std::string& bytes);
/// A log-probability that JSON can hold, which has no infinity.
[[nodiscard]] inline double bounded(double log_probability) {
  constexpr double kLeast = -9999;
  return std::max(log_probability, kLeast);
}
/// "stop", "length" or null.
[[nodiscard]] nlohmann::ordered_json finish_name(Finish finish);

}  // namespace hyperslab::serve
