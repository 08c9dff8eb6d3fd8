// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

namespace hyperslab::io {

/// The last offset in [from, text.size()) at which `text` may be cut so that both parts have the
/// pieces that the whole has, under the split patterns of GPT-2, GPT-4 and Llama 3: after a line
/// break between two characters that are not white space, the second no ASCII punctuation; if there
/// is none, before a space between two visible ASCII characters. npos if there is neither. `from`
/// is at least 2.
[[nodiscard]] std::size_t last_cut(std::string_view text, std::size_t from);

/// True if a text may be cut at an offset between two pieces.
using MayCut = std::function<bool(std::string_view text, std::size_t at)>;
/// The last of these offsets that `may_cut` takes, after a line break if there is one of those.
/// O(bytes), whatever `may_cut` refuses.
[[nodiscard]] std::size_t last_cut_where(std::string_view text, std::size_t from,
                                         const MayCut& may_cut);

/// last_cut(), or a tokenizer's last_cut().
using LastCut = std::function<std::size_t(std::string_view text, std::size_t from)>;

/// Bytes of text that a thread takes at once.
inline constexpr std::size_t kPartBytes = 256 << 10;

/// `text` in parts of about `bytes`, longer ones if there is no such offset.
[[nodiscard]] std::vector<std::string_view> cut_into_parts(std::string_view text, std::size_t bytes,
                                                           const LastCut& cut_of = last_cut);

}  // namespace hyperslab::io
