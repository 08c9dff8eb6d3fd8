// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hyperslab::io {

/// `text` in Unicode's normalization form C (Unicode Standard Annex 15), in `copy` if it differs.
/// What is no UTF-8 stays as it is, and nothing is composed across it.
[[nodiscard]] std::string_view in_nfc(std::string_view text, std::string& copy);

}  // namespace hyperslab::io
