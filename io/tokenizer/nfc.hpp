// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab::io {

/// `text` in Unicode's normalization form C (Unicode Standard Annex 15), in `copy` if it differs,
/// as the package tokenizers makes it: code points of Unicode 10 and later neither move nor
/// compose. Bytes that are no UTF-8 stay as they are, and nothing is composed across them.
[[nodiscard]] std::string_view in_nfc(std::string_view text, std::string& copy);

}  // namespace hyperslab::io
